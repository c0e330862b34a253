"""Message ids and ack sets are values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import WireError
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.ids import (
    EARLIEST,
    LATEST,
    MessageId,
    ack_set_from_bits,
    bits_from_ack_set,
    decode_id,
    encode_id,
    id_from_wire,
    id_to_wire,
    parse_id,
    unacknowledged,
)

NUMBER = st.integers(-1, 2**63 - 1)
SMALL = st.integers(-1, 2**31 - 1)
IDS = st.builds(MessageId, NUMBER, NUMBER, SMALL, SMALL)


@given(IDS)
def test_an_id_survives_the_wire_the_clients_drawer_and_the_tools(at: MessageId) -> None:
    assert id_from_wire(id_to_wire(at)) == at
    assert decode_id(encode_id(at)) == at
    assert parse_id(str(at)) == at


def test_before_the_first_is_the_largest_number_on_the_wire() -> None:
    assert id_to_wire(EARLIEST).ledgerId == 2**64 - 1
    assert id_to_wire(LATEST).entryId == 2**63 - 1
    assert not id_to_wire(EARLIEST).HasField("partition")


def test_ids_order_as_positions_do() -> None:
    assert EARLIEST < MessageId(1, 5) < MessageId(1, 5, 0, 3) < MessageId(2, 0) < LATEST


@pytest.mark.parametrize("text", ["", "1", "1:2:3:4:5", "a:b", "1:-2", f"{2**63}:0", "1:2:", "１:x"])
def test_what_is_not_an_id_is_a_wire_error(text: str) -> None:
    with pytest.raises(WireError):
        parse_id(text)
    with pytest.raises(WireError):
        decode_id(text.encode() + b"\xff")


@given(st.integers(0, 2**300))
def test_an_ack_set_is_a_number(bits: int) -> None:
    words = ack_set_from_bits(bits)
    assert bits_from_ack_set(words) == bits
    assert bits_from_ack_set([*words, 0, 0]) == bits
    assert list(api.MessageIdData(ack_set=words).ack_set) == words


def test_ack_sets_are_those_of_javas_bit_sets() -> None:
    assert ack_set_from_bits(0) == []
    assert ack_set_from_bits(unacknowledged(10)) == [1023]
    assert ack_set_from_bits(1 << 63) == [-(2**63)]
    assert ack_set_from_bits(unacknowledged(65)) == [-1, 1]
    assert bits_from_ack_set([-1, 1]) == unacknowledged(65)
