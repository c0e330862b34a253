"""Field tables: every type as RabbitMQ has it, back byte for byte, and bounded in every way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import AmqpError
from weir.testing.codecs.amqp_strategies import pairs
from weir.wire.amqp.frames import ReplyCode
from weir.wire.amqp.tables import MAX_DEPTH, MAX_VALUES, NO_FIELDS, Field, Table


def syntax_error(raw: bytes) -> str:
    with pytest.raises(AmqpError) as refused:
        Table(raw)
    assert refused.value.code == ReplyCode.SYNTAX_ERROR
    return refused.value.what


@given(pairs)
def test_typed_values_come_back_with_their_types(found: list[tuple[str, Field]]) -> None:
    table = Table.of(found)
    assert table.fields == tuple(found)
    again = Table(table.raw)
    assert (again, hash(again), again.fields) == (table, hash(table), table.fields)


@given(pairs, st.data())
def test_a_table_that_is_cut_short_is_refused_or_ends_between_fields(
    found: list[tuple[str, Field]], data: st.DataObject
) -> None:
    raw = Table.of(found).raw
    cut = raw[: data.draw(st.integers(0, len(raw)))]
    ends = {len(Table.of(found[:at]).raw): at for at in range(len(found) + 1)}
    if len(cut) in ends:
        assert Table(cut).fields == tuple(found[: ends[len(cut)]])
    else:
        syntax_error(cut)


def test_the_tags_are_rabbitmqs_and_not_the_specifications() -> None:
    raw = (
        b"\x01as\xff\xfe\x01bl\xff\xff\xff\xff\xff\xff\xff\xff\x01cL\xff\xff\xff\xff\xff\xff\xff\xff"
        b"\x01dU\xff\xff\x01eu\xff\xff\x01fI\xff\xff\xff\xff\x01gi\xff\xff\xff\xff\x01hx\x00\x00\x00\x01\xff"
        b"\x01ib\xff\x01jB\xff\x01kD\x02\x00\x00\x01\x00\x01lV\x01mt\x02\x01nS\x00\x00\x00\x01\xff"
    )
    table = Table(raw)
    assert [field.value for _, field in table.fields] == [
        -2,
        -1,
        -1,
        -1,
        0xFFFF,
        -1,
        0xFFFFFFFF,
        b"\xff",
        -1,
        255,
        (2, 256),
        None,
        True,
        "\udcff",
    ]
    assert table.raw == raw


def test_plain_values_get_the_tags_of_rabbitmqs_clients() -> None:
    table = Table.of(
        {
            "a": True,
            "b": 5,
            "c": 1 << 31,
            "d": 0.5,
            "e": "é",
            "f": b"\0",
            "g": None,
            "h": [1, {"i": 2}],
            "j": NO_FIELDS,
        }
    )
    assert "".join(field.tag for _, field in table.fields) == "tIldSxVAF"
    assert table.get("h") == (Field("I", 1), Field("F", Table.of({"i": 2})))


def test_of_two_fields_of_a_name_the_first_one_counts() -> None:
    table = Table.of([("n", 1), ("m", 2), ("n", 3)])
    assert (table.get("n"), table.get("nobody"), "m" in table, len(table)) == (1, None, True, 3)
    assert table.replacing("n", "x").fields == (("m", Field("I", 2)), ("n", Field("S", "x")))
    assert table.without("n", "m") == NO_FIELDS


def test_unknown_types_and_sizes_beyond_the_table_are_refused() -> None:
    assert "'?'" in syntax_error(b"\x01a?")
    assert "4294967295" in syntax_error(b"\x01aS\xff\xff\xff\xff")
    assert "ends within" in syntax_error(b"\xffa")
    assert "ends within" in syntax_error(b"\x01aA\x00\x00\x00\x01I")


def test_nesting_is_followed_so_deep_and_no_deeper() -> None:
    def nested(depth: int) -> bytes:
        raw = b""
        for _ in range(depth - 1):
            raw = b"\x01aF" + len(raw).to_bytes(4, "big") + raw
        return raw

    Table(nested(MAX_DEPTH))
    assert "deep" in syntax_error(nested(MAX_DEPTH + 1))
    assert "deep" in syntax_error(nested(5000))
    arrays = b""
    for _ in range(MAX_DEPTH):
        arrays = b"A" + len(arrays).to_bytes(4, "big") + arrays
    assert "deep" in syntax_error(b"\x01a" + arrays)


def test_the_values_of_a_table_are_counted_with_those_within_it() -> None:
    inside = b"V" * (MAX_VALUES - 1)
    array = b"\x01aA" + len(inside).to_bytes(4, "big") + inside
    assert len(Table(array)) == 1
    assert str(MAX_VALUES) in syntax_error(array + b"\x01bV")


@pytest.mark.parametrize(
    "field",
    [Field("?", 1), Field("B", 256), Field("S", b"bytes"), Field("F", "text"), Field("I", 1 << 31), Field("V", 1)],
    ids=str,
)
def test_what_a_type_cannot_hold_is_an_error_of_ours(field: Field) -> None:
    with pytest.raises(AmqpError) as refused:
        Table.of({"a": field})
    assert refused.value.code == ReplyCode.INTERNAL_ERROR
    with pytest.raises(AmqpError):
        Table.of({"a" * 256: 1})
