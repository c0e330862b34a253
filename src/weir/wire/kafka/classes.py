"""One class per message and struct of the table, made at import.

A class has the fields of all versions. Absent structs (all are tagged fields) are None.
"""

from typing import Any

from msgspec import Struct, defstruct

from weir.wire.kafka.schema.layout import Layout, Structure
from weir.wire.kafka.schema.table import LAYOUTS


class Message(Struct):
    """Any message of the protocol. Handlers fill them in, so they are not frozen."""


def _class(structure: Structure, namespace: dict[str, Any]) -> type[Message]:
    fields: list[tuple[str, type, Any]] = [
        (field.name, object, [] if field.default == () else field.default) for field in structure.fields
    ]
    made: type[Any] = defstruct(
        structure.name, fields, bases=(Message,), namespace=namespace, module="weir.wire.kafka.messages"
    )
    return made


def _classes(layout: Layout) -> type[Message]:
    nested = {struct.name: _class(struct, {}) for struct in layout.structs}
    for name, kind in nested.items():
        kind.__qualname__ = f"{layout.name}.{name}"
    return _class(layout.body, dict(nested))


#: Every message's class, with its structs as attributes.
CLASSES: dict[str, type[Message]] = {name: _classes(layout) for name, layout in LAYOUTS.items()}
