"""Unsigned varints at every length, and tagged sections that nobody knows."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weir.model.errors import WireError
from weir.wire.kafka.primitives import read_uvarint, skip_section, uvarint


@given(st.integers(0, 2**32 - 1))
@example(0)
@example(0x7F)
@example(0x80)
@example(0x3FFF)
@example(0x4000)
@example(0x1FFFFF)
@example(0x200000)
@example(0xFFFFFFF)
@example(0x10000000)
@example(0xFFFFFFFF)
def test_a_varint_survives_in_as_few_bytes_as_it_needs(number: int) -> None:
    data = uvarint(number)
    assert read_uvarint(memoryview(b"\xff" + data + b"\xff"), 1) == (number, 1 + len(data))
    assert len(data) == max(1, -(-number.bit_length() // 7))


@pytest.mark.parametrize("number", [2**32, 2**40])
def test_a_number_beyond_32_bits_is_not_written(number: int) -> None:
    with pytest.raises(WireError):
        uvarint(number)


@pytest.mark.parametrize("data", ["ffffffffff01", "ffffffff1f", "808080808000"])
def test_a_varint_beyond_32_bits_is_refused(data: str) -> None:
    with pytest.raises(WireError):
        read_uvarint(memoryview(bytes.fromhex(data)), 0)


def test_a_tagged_section_is_skipped_to_its_end() -> None:
    section = uvarint(60) + b"".join(uvarint(tag * 9) + uvarint(2) + b"ab" for tag in range(60))
    assert skip_section(memoryview(section + b"rest"), 0) == len(section)


def test_a_header_with_very_many_tagged_fields_is_refused() -> None:
    with pytest.raises(WireError, match="tagged section"):
        skip_section(memoryview(uvarint(1000) + bytes(2000)), 0)
