"""The bookie's files as bytes: they come back as they went, and damage is a WireError and nothing else."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import ChecksumError, WireError
from weir.model.ids import EntryId, LedgerId
from weir.wire import bookie_files
from weir.wire.bookie_files import Checkpoint, Position, decode_checkpoint, encode_checkpoint
from weir.wire.checksum import crc32c
from weir.wire.entry import encode_entry

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
headers = st.builds(
    bookie_files.RecordHeader, st.sampled_from(bookie_files.RecordKind), u64, u64, u64, u64, u32, u32
)
runs = st.builds(bookie_files.Run, u64, u64, u64, u64, u64, u64, u64, st.integers(-1, 2**63 - 1))
checkpoints = st.builds(
    Checkpoint,
    u64,
    st.builds(Position, u64, u64, u64),
    u64,
    st.lists(u64, max_size=5).map(tuple),
    st.lists(st.tuples(u64, u64), max_size=5).map(tuple),
    st.lists(u64, max_size=5).map(tuple),
)


def mutated(data: bytes, at: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[at % len(data)] ^= 1 << bit
    return bytes(changed)


@given(headers)
def test_a_record_header_comes_back(header: bookie_files.RecordHeader) -> None:
    data = bookie_files.encode_header(header)
    assert len(data) == bookie_files.HEADER_BYTES
    assert bookie_files.decode_header(b"xyz" + data, 3) == header


@given(headers, u32, st.integers(0, 7))
def test_a_flipped_bit_in_a_record_header_is_found(header: bookie_files.RecordHeader, at: int, bit: int) -> None:
    with pytest.raises(WireError):
        bookie_files.decode_header(mutated(bookie_files.encode_header(header), at, bit))


@given(st.integers(0, 3 * bookie_files.BLOCK_BYTES))
def test_a_record_ends_on_a_block_boundary(length: int) -> None:
    size = bookie_files.HEADER_BYTES + length + len(bookie_files.padding(length))
    assert size == bookie_files.record_bytes(length)
    assert size % bookie_files.BLOCK_BYTES == 0
    assert size - bookie_files.BLOCK_BYTES < bookie_files.HEADER_BYTES + length


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99), st.binary(max_size=30)), max_size=6))
def test_entries_of_a_record_come_back(contents: list[tuple[int, int, bytes]]) -> None:
    entries = [encode_entry(ledger, number, -1, 0, payload) for ledger, number, payload in contents]
    found = [
        (ledger, number, bytes(data)) for ledger, number, data in bookie_files.split_entries(b"".join(entries))
    ]
    assert found == [(ledger, number, data) for (ledger, number, _), data in zip(contents, entries, strict=True)]


@given(st.lists(u64, max_size=9))
def test_ledgers_of_a_record_come_back(ledgers: list[int]) -> None:
    ids = [LedgerId(ledger) for ledger in ledgers]
    assert bookie_files.decode_ledgers(bookie_files.encode_ledgers(ids)) == ids


def test_a_body_that_is_not_what_the_header_announces_is_refused() -> None:
    header = bookie_files.RecordHeader(bookie_files.RecordKind.ENTRIES, 1, 2, 0, 0, 3, crc32c(b"abc"))
    bookie_files.verify_body(header, b"abc")
    for body in (b"abd", b"ab", b"abcd"):
        with pytest.raises(ChecksumError):
            bookie_files.verify_body(header, body)


@given(st.lists(runs, max_size=5), st.integers(0, 2**40), u64)
def test_an_index_head_comes_back(expected: list[bookie_files.Run], rows: int, log_bytes: int) -> None:
    head = bookie_files.encode_head(b"".join(bookie_files.pack_run(*run) for run in expected), rows, log_bytes)
    header = bookie_files.entrylog_decode_header(head)
    assert (header.rows, header.log_bytes, header.pages_offset) == (rows, log_bytes, len(head))
    assert bookie_files.decode_runs(header, head[bookie_files.HEADER_BYTES :]) == expected


@given(st.lists(runs, min_size=1, max_size=3), u32, st.integers(0, 7))
def test_a_flipped_bit_in_an_index_head_is_found(some: list[bookie_files.Run], at: int, bit: int) -> None:
    packed = b"".join(bookie_files.pack_run(*run) for run in some)
    head = bookie_files.encode_head(packed, 7, 7)[: bookie_files.HEADER_BYTES + len(packed)]
    bad = mutated(head, at, bit)
    with pytest.raises(WireError):
        bookie_files.decode_runs(bookie_files.entrylog_decode_header(bad), bad[bookie_files.HEADER_BYTES :])


@given(st.lists(st.tuples(u64, u64, u32), min_size=1, max_size=bookie_files.ROWS_PER_PAGE), u32, st.integers(0, 7))
def test_a_page_gives_its_rows_back_or_is_found_damaged(
    rows: list[tuple[int, int, int]], at: int, bit: int
) -> None:
    page = bookie_files.encode_page(b"".join(bookie_files.pack_row(*row) for row in rows))
    bookie_files.verify_page(page)
    assert [tuple(bookie_files.row_at(page, slot)) for slot in range(len(rows))] == rows
    with pytest.raises(WireError):
        bookie_files.verify_page(mutated(page, at, bit))


@given(checkpoints)
def test_a_checkpoint_comes_back(checkpoint: Checkpoint) -> None:
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


@given(checkpoints, u32, st.integers(0, 7))
def test_a_flipped_bit_in_a_checkpoint_is_found(checkpoint: Checkpoint, at: int, bit: int) -> None:
    with pytest.raises(WireError):
        decode_checkpoint(mutated(encode_checkpoint(checkpoint), at, bit))


def _decode_index(data: bytes) -> object:
    return bookie_files.decode_runs(bookie_files.entrylog_decode_header(data), data[bookie_files.HEADER_BYTES :])


def _split(data: bytes) -> object:
    return list(bookie_files.split_entries(data))


@pytest.mark.parametrize(
    "decode",
    [
        bookie_files.decode_header,
        bookie_files.decode_start,
        bookie_files.decode_ledgers,
        _split,
        _decode_index,
        decode_checkpoint,
    ],
)
@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_wire_errors(decode: Callable[[bytes], object], data: bytes) -> None:
    with suppress(WireError):
        decode(data)


def test_a_start_names_the_end_of_the_file_before() -> None:
    start = bookie_files.Start(3, 8192)
    assert bookie_files.decode_start(bookie_files.encode_start(start)) == start


def test_the_highest_ids_fit() -> None:
    row = bookie_files.pack_row(2**63 - 1, 2**63 - 1, 2**32 - 1)
    assert bookie_files.row_at(bookie_files.encode_page(row), 0) == bookie_files.Row(
        EntryId(2**63 - 1), 2**63 - 1, 2**32 - 1
    )
