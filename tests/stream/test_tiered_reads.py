"""Many who read from the lake at once: each block comes from the store once, however small the memory is."""

import asyncio
from collections.abc import Mapping

import pytest

from weir.model.batch import Batch, BatchFormat
from weir.model.ids import LedgerId
from weir.model.stream import LedgerFate, Segment, SegmentStore, Span
from weir.stream.segments import SegmentReads
from weir.wire import segment as segments
from weir.wire.batch import encode_batch

PLACE = SegmentStore("s3://lake")
BATCHES = 400
#: Of an object's end, which is read first.
INDEX_BYTES = 64 * 1024


def copy_of(ledger: int) -> bytes:
    encoder = segments.SegmentEncoder(LedgerId(ledger), 0)
    pieces = encoder.begin()
    for at in range(BATCHES):
        batch = Batch(at, 1, BatchFormat.PULSAR, 1, bytes(500))
        pieces += encoder.add(b"".join(bytes(piece) for piece in encode_batch(batch)))
    return b"".join(bytes(piece) for piece in [*pieces, *encoder.end()])


class Objects:
    """A store that counts what it gives."""

    def __init__(self, readers: int) -> None:
        self.objects = {str(number): copy_of(number) for number in range(readers)}
        self.given = self.requests = 0

    def open(self, url: str, options: Mapping[str, str]) -> "Objects":
        return self

    async def read(self, name: str, position: int, length: int) -> bytes:
        self.given += length
        self.requests += 1
        await asyncio.sleep(0)
        return self.objects[name][position : position + length]

    @property
    def spans(self) -> list[Span]:
        return [
            Span(LedgerId(int(name)), 0, BATCHES, len(data), segment=Segment(0, name, len(data), LedgerFate.GONE))
            for name, data in self.objects.items()
        ]


@pytest.mark.parametrize(("readers", "cache_bytes"), [(1, 200_000), (8, 200_000), (24, 200_000), (8, 60_000)])
def test_what_is_read_ahead_for_one_is_not_pushed_out_by_what_is_read_ahead_for_others(
    monkeypatch: pytest.MonkeyPatch, readers: int, cache_bytes: int
) -> None:
    monkeypatch.setattr(segments, "BLOCK_BYTES", 2000)
    objects = Objects(readers)

    async def all_of(reads: SegmentReads, span: Span) -> int:
        offset = 0
        while offset < BATCHES:
            found = await reads.read(PLACE, span, offset, 1500)
            assert found[0].base_offset == offset
            offset = found[-1].end_offset
            await asyncio.sleep(0)
        return offset

    async def scenario() -> None:
        reads = SegmentReads(objects, cache_bytes)  # type: ignore[arg-type]
        ends = await asyncio.gather(*(all_of(reads, span) for span in objects.spans))
        assert ends == readers * [BATCHES]
        assert reads.cache.size_bytes <= cache_bytes
        await reads.close()

    asyncio.run(scenario())
    whole = sum(map(len, objects.objects.values()))
    assert objects.given <= 1.1 * whole + readers * INDEX_BYTES
    blocks = sum(len(data) // 2000 for data in objects.objects.values())
    assert objects.requests < blocks or readers * 20_000 > cache_bytes, "and in ranges, where there is room"
