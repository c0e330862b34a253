"""Compressed batches are opened side by side, into memory that grows as it must and is used again."""

import pytest
from cramjam import gzip, lz4, snappy, zstd

from weir.model.errors import FrameTooLargeError, WireError
from weir.spark.records import decoder
from weir.spark.records.decoder import BatchTable, Opener
from weir.wire.kafka.compression import decompress_into
from weir.wire.kafka.record_batch import NO_STAMP, Compression, sealed

PACK = {
    Compression.NONE: bytes,
    Compression.GZIP: gzip.compress,
    Compression.SNAPPY: snappy.compress_raw,
    Compression.LZ4: lz4.compress,
    Compression.ZSTD: zstd.compress,
}
KINDS = pytest.mark.parametrize("kind", list(PACK), ids=lambda kind: kind.name.lower())


def batch(kind: Compression, body: bytes) -> bytes:
    return sealed(
        bytes(PACK[kind](body)),
        base_offset=0,
        attributes=kind,
        last_offset_delta=0,
        times=(0, 0),
        stamp=NO_STAMP,
        records=1,
    )


def opened(opener: Opener, *batches: bytes) -> list[bytes]:
    table = BatchTable(b"".join(batches))
    data, bounds = opener.open(table.data, table.rows)
    return [bytes(memoryview(data)[first:end]) for first, end in bounds.tolist()]


def test_batches_of_all_compressions_lie_side_by_side_however_they_grow() -> None:
    opener = Opener()
    bodies = [bytes([65 + at]) * size for at, size in enumerate((10, 300_000, 5, 2_000_000, 0, 70_000))]
    for _ in range(2):  # the second time into room that is there
        for first in range(len(PACK)):
            kinds = [list(PACK)[(first + at) % len(PACK)] for at in range(len(bodies))]
            found = opened(opener, *(batch(kind, body) for kind, body in zip(kinds, bodies, strict=True)))
            assert found == bodies


@KINDS
def test_no_batch_opens_to_more_than_a_batch_may_be(kind: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "MAX_PAYLOAD_BYTES", 1000)
    assert opened(Opener(), batch(Compression.LZ4, b"a"), batch(kind, b"b" * 1000)) == [b"a", b"b" * 1000]
    with pytest.raises(FrameTooLargeError):
        opened(Opener(), batch(Compression.LZ4, b"a"), batch(kind, b"b" * 1001))


def test_batches_that_are_much_when_opened_are_opened_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_KEPT_BYTES", 100_000)
    bombs = [batch(Compression.ZSTD, bytes([at]) * 60_000) for at in range(5)]
    table, opener, found = BatchTable(b"".join(bombs)), Opener(), []
    rows = table.rows
    while len(rows):
        data, bounds = opener.open(table.data, rows)
        assert len(data) <= 120_000
        found += [(data[first], end - first) for first, end in bounds.tolist()]
        rows = rows[len(bounds) :]
    assert found == [(at, 60_000) for at in range(5)]


@KINDS
def test_room_that_is_too_small_is_told_from_bytes_that_are_damaged(kind: Compression) -> None:
    packed = memoryview(bytes(PACK[kind](b"abc" * 100)))
    room = memoryview(bytearray(400))
    assert decompress_into(kind, packed, room[:299]) is None
    assert decompress_into(kind, packed, room) == 300
    assert bytes(room[:300]) == b"abc" * 100
    if kind is not Compression.NONE:
        with pytest.raises(WireError):
            decompress_into(kind, packed[: len(packed) // 2], room)
