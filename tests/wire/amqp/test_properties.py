"""Properties: all fourteen, there or not, back byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import AmqpError
from weir.testing.codecs.amqp_strategies import properties
from weir.wire.amqp.frames import ReplyCode
from weir.wire.amqp.properties import NAMES, NO_PROPERTIES, Properties, decode_properties, encode_properties
from weir.wire.amqp.tables import Table


@given(properties, st.data())
def test_what_was_said_comes_back_and_what_was_not_stays_unsaid(found: Properties, data: st.DataObject) -> None:
    raw = encode_properties(found)
    assert decode_properties(raw) == found
    for wrong in (raw[: data.draw(st.integers(0, len(raw) - 1))], raw + b"\0"):
        with pytest.raises(AmqpError) as refused:
            decode_properties(wrong)
        assert refused.value.code == ReplyCode.SYNTAX_ERROR


def test_each_has_its_flag_from_the_highest_down() -> None:
    values = dict.fromkeys(NAMES, "x")
    values |= {"headers": Table.of({"h": 1}), "delivery_mode": 2, "priority": 9, "timestamp": 5}  # type: ignore[dict-item]
    for index, name in enumerate(NAMES):
        raw = encode_properties(Properties(**{name: values[name]}))  # type: ignore[arg-type]
        assert int.from_bytes(raw[:2], "big") == 1 << (15 - index)
    assert encode_properties(Properties()) == NO_PROPERTIES


@pytest.mark.parametrize("flag", [1, 2, 3, 0x8001])
def test_more_flags_and_unknown_ones_are_refused(flag: int) -> None:
    with pytest.raises(AmqpError, match="flags"):
        decode_properties(flag.to_bytes(2, "big") + b"\x01a" * 2)


@pytest.mark.parametrize(
    "wrong",
    [
        Properties(priority=256),
        Properties(timestamp=-1),
        Properties(type="x" * 256),
        Properties(headers={}),  # type: ignore[arg-type]
        Properties(app_id="\ud800"),
    ],
    ids=str,
)
def test_what_a_property_cannot_hold_is_an_error_of_ours(wrong: Properties) -> None:
    with pytest.raises(AmqpError) as refused:
        encode_properties(wrong)
    assert refused.value.code == ReplyCode.INTERNAL_ERROR
