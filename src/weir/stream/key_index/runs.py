"""Runs of an index of keys: written, read and merged, bucket by bucket."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from weir.ledger.reader import LedgerReader
from weir.ledger.writer import LedgerWriter
from weir.model.ids import EntryId, LedgerId
from weir.stream.context import StreamContext
from weir.wire.key_index import RECORD_BYTES, Run, bucket_of, check_head, encode_head, offsets_in

#: Records of a bucket, about: one read of some KiB finds a key.
_BUCKET_RECORDS = 256
_MOST_BITS = 24
#: Records that are put into buckets before others have their turn.
_STEP = 2048
#: Ledgers of runs that are kept open.
_MOST_READERS = 64


def bits_for(records: int) -> int:
    """How many bits of a hash tell buckets apart."""
    return min(_MOST_BITS, max(0, (records // _BUCKET_RECORDS).bit_length()))


class Runs:
    """Reads and writes runs of one stream."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._readers: OrderedDict[int, LedgerReader] = OrderedDict()

    async def begin(self) -> LedgerWriter:
        return await self._context.ledgers.create(self._context.settings.quorum)

    async def find(self, run: Run, hashed: bytes) -> list[int]:
        """The offsets that a run has for a hash: one read. WireError or EntryLostError if it is damaged."""
        return offsets_in(await self._bucket(run, bucket_of(hashed, run.bits)), hashed)

    async def _bucket(self, run: Run, bucket: int) -> bytes:
        reader = await self._reader(run)
        entry = EntryId(bucket + 1)
        (found,) = await reader.read(entry, entry)
        return bytes(found.payload)

    async def _reader(self, run: Run) -> LedgerReader:
        reader = self._readers.get(run.ledger)
        if reader is None:
            reader = await self._context.ledgers.open(LedgerId(run.ledger), recover=False)
            try:
                (head,) = await reader.read(EntryId(0), EntryId(0))
                check_head(head.payload, run)
            except BaseException:
                await reader.close()
                raise
            self._readers[run.ledger] = reader
            while len(self._readers) > _MOST_READERS:
                await self._readers.popitem(last=False)[1].close()
        else:
            self._readers.move_to_end(run.ledger)
        return reader

    async def write(self, writer: LedgerWriter, records: bytearray, first: int, end: int) -> Run:
        """A run of these records."""
        count = len(records) // RECORD_BYTES
        run = Run(writer.ledger_id, first, end, count, bits_for(count), 0)
        last = await self._put(writer, encode_head(run))
        for bucket in await self._parted(records, run.bits, 0):
            last = await self._put(writer, bucket)
        await self._finish(writer, last)
        return run

    async def merge(self, writer: LedgerWriter, runs: Sequence[Run], start: int) -> Run:
        """One run of neighbours, without what lies before `start`."""
        records = sum(run.records for run in runs)
        bits, least = bits_for(records), min(run.bits for run in runs)
        bits = max(bits, least)
        merged = Run(
            writer.ledger_id, runs[0].first, runs[-1].end, records, bits, max(run.level for run in runs) + 1
        )
        last = await self._put(writer, encode_head(merged))
        for prefix in range(1 << least):
            some = bytearray()
            for run in runs:
                more = run.bits - least  # the buckets whose hashes begin with these bits
                for place in range(prefix << more, (prefix + 1) << more):
                    some += await self._bucket(run, place)
            for bucket in await self._parted(some, bits, least, start):
                last = await self._put(writer, bucket)
        await self._finish(writer, last)
        return merged

    async def _parted(self, records: bytearray, bits: int, known: int, start: int = 0) -> list[bytes]:
        """Records whose first `known` bits are the same, in buckets."""
        buckets = [bytearray() for _ in range(1 << (bits - known))]
        within = (1 << (bits - known)) - 1
        for at in range(0, len(records), RECORD_BYTES):
            record = records[at : at + RECORD_BYTES]
            if not start or int.from_bytes(record[8:], "little") >= start:
                buckets[bucket_of(record, bits) & within] += record
            if not at % (_STEP * RECORD_BYTES):
                await self._context.runtime.clock.sleep(0)
        return [bytes(bucket) for bucket in buckets]

    @staticmethod
    async def _put(writer: LedgerWriter, payload: bytes) -> "asyncio.Future[EntryId]":
        await writer.wait_capacity()
        put = writer.append(payload)
        put.add_done_callback(lambda done: done.cancelled() or done.exception())
        return put

    @staticmethod
    async def _finish(writer: LedgerWriter, last: "asyncio.Future[EntryId]") -> None:
        await last  # close() does not tell: it ends the ledger behind what is stored
        await writer.close()

    async def forget(self, ledger: int) -> None:
        """Delete it."""
        reader = self._readers.pop(ledger, None)
        if reader is not None:
            await reader.close()
        await self._context.ledgers.delete(LedgerId(ledger))

    async def close(self) -> None:
        while self._readers:
            await self._readers.popitem()[1].close()
