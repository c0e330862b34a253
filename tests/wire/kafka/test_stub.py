"""What type checkers see of the messages is what there is."""

from pathlib import Path

from weir.wire import kafka
from weir.wire.kafka import stubs
from weir.wire.kafka.classes import CLASSES
from weir.wire.kafka.schema.table import LAYOUTS


def test_messages_pyi_is_up_to_date() -> None:
    written = Path(kafka.__file__).with_name("messages.pyi").read_text(encoding="utf-8")
    assert written == stubs.text(), "run tools/kafka_messages.py"


def test_every_message_and_struct_is_an_attribute_under_its_own_name() -> None:
    from weir.wire.kafka import messages

    for name, layout in LAYOUTS.items():
        kind = vars(messages)[name]
        assert kind is CLASSES[name]
        assert kind.__struct_fields__ == tuple(field.name for field in layout.body.fields)
        for struct in layout.structs:
            assert vars(kind)[struct.name].__qualname__ == f"{name}.{struct.name}"
