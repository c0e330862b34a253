"""Some bytes are found in a batch wherever they stand in a header, whatever the size and compression."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import WireError
from weir.testing.codecs.record_samples import compressed
from weir.wire.kafka.record_batch import Compression, parse_header
from weir.wire.kafka.records import Record, Searcher, build_batch

MARK = b"mark-name"
NAMES = (MARK, b"mark-of-another")
#: The byte that stands before the name.
RICH = bytes([2 * len(MARK)])


def has(batch: bytes) -> bool:
    return Searcher(b"mark-", NAMES).has(batch, parse_header(batch))


@pytest.mark.slow
@pytest.mark.parametrize("filling", [b"x", RICH], ids=["text", "rich in lengths"])
@pytest.mark.parametrize("size", [0, 100, 5_000, 400_000])
@pytest.mark.parametrize("kind", Compression)
def test_a_header_is_found_in_records_of_any_size(kind: Compression, size: int, filling: bytes) -> None:
    def batch(*marked: int) -> bytes:
        headers = [(NAMES[size % 3 > 0], b"v")]
        records = [Record(n, 1, b"key", filling * size, headers if n in marked else []) for n in range(5)]
        return compressed(build_batch(records), kind)

    assert not has(batch())
    for n in range(5):
        assert has(batch(n))
    assert has(batch(0, 1, 2, 3, 4))


def test_other_headers_are_not_taken_for_it_in_large_records() -> None:
    assert not has(build_batch([Record(0, 1, None, RICH * 9000, [(b"other", b"v")])]))


def test_one_room_serves_batch_after_batch() -> None:
    searcher = Searcher(b"mark-", NAMES)
    for kind in (Compression.LZ4, Compression.ZSTD):
        for headers in ([(MARK, b"x")], [], [(MARK, None)], []):
            batch = compressed(build_batch([Record(0, 1, b"k", b"v" * 50, headers)]), kind)
            assert searcher.has(batch, parse_header(batch)) is bool(headers)


@given(keys=st.lists(st.none() | st.binary(max_size=80), min_size=1, max_size=3), null=st.booleans())
def test_nothing_is_missed_among_bytes_that_look_alike(keys: list[bytes | None], null: bool) -> None:
    values = [None if null and n else RICH * 20_000 for n in range(len(keys))]
    for marked in range(len(keys)):
        records = [
            Record(n, n, key, value, [(MARK, b"1")] if n == marked else [])
            for n, (key, value) in enumerate(zip(keys, values, strict=True))
        ]
        assert has(build_batch(records))


def test_records_that_cannot_be_opened_are_a_wire_error() -> None:
    with pytest.raises(WireError):
        has(build_batch([Record(0, 1, None, b"x")], attributes=Compression.ZSTD))
