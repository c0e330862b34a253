"""The text of `messages.pyi`, out of the table; `tools/kafka_messages.py` writes it."""

from weir.wire.kafka.schema.layout import Field, Layout, Structure
from weir.wire.kafka.schema.table import LAYOUTS

_HEAD = '''\
"""Made by tools/kafka_messages.py out of weir.wire.kafka.schema.table: do not edit."""

from collections.abc import Sequence

from weir.model.ids import Buffer
from weir.wire.kafka.classes import Message as Message
'''

_TYPES = {
    "float64": "float",
    "bool": "bool",
    "string": "str",
    "bytes": "Buffer",
    "records": "Buffer",
    "uuid": "bytes",
}


def text() -> str:
    return "\n".join([_HEAD, *(_message(layout) for layout in LAYOUTS.values())])


def _message(layout: Layout) -> str:
    lines = [f"class {layout.name}(Message):"]
    for struct in layout.structs:
        lines += [f"    class {struct.name}(Message):", *_fields(layout, struct, "        "), ""]
    return "\n".join([*lines, *_fields(layout, layout.body, "    "), ""])


def _fields(layout: Layout, structure: Structure, indent: str) -> list[str]:
    return [f"{indent}{field.name}: {_type(layout, field)} = ..." for field in structure.fields] or [
        f"{indent}..."
    ]


def _type(layout: Layout, field: Field) -> str:
    kind = _TYPES.get(field.kind, "int") if field.struct is None else f"{layout.name}.{field.kind}"
    if field.kind == "records" and layout.name == "FetchResponse":
        kind = "Buffer | Sequence[Buffer]"  # a broker may give several batches, as they lie in its cache
    if field.array:
        kind = f"list[{kind}]"
    return f"{kind} | None" if field.nullable is not None or field.default is None else kind
