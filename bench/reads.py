"""Reads: the tail from memory, and what lies only on the disk."""

import asyncio
import os
import time

from bench.append import append_all, writers_of
from bench.case import Measured, Params, case
from bench.raw import drop_page_cache
from bench.stores import Store, bookie_settings, on_store
from weir.bookie.bookie import Bookie
from weir.ledger.client import LedgerClient
from weir.ledger.reader import LedgerReader
from weir.ledger.remote_bookie import RemoteBookiePool
from weir.model.ids import BookieId, EntryId

_READS_IN_FLIGHT = 16


def _measured(entries: int, size: int, seconds: float) -> Measured:
    return {"entries_s": entries / seconds, "mb_s": entries * size / 1e6 / seconds, "us": seconds / entries * 1e6}


async def _sequential(reader: LedgerReader, count: int) -> int:
    seen = 0
    async for chunk in reader.stream(EntryId(0), EntryId(count - 1)):
        seen += len(chunk)
    assert seen == count
    return seen


async def _random(reader: LedgerReader, count: int, reads: int, in_flight: int) -> int:
    """Single entries in an order that no read-ahead can guess, a few at a time."""
    places = [EntryId(i * 7919 * 104729 % count) for i in range(reads)]

    async def share(mine: list[EntryId]) -> None:
        for place in mine:
            await reader.read(place, place)

    await asyncio.gather(*(share(places[i::in_flight]) for i in range(in_flight)))
    return reads


async def _timed(reader: LedgerReader, params: Params) -> Measured:
    started = time.perf_counter()
    if params["order"] == "sequential":
        entries = await _sequential(reader, params["count"])
    else:
        entries = await _random(reader, params["count"], params["reads"], params.get("in_flight", 1))
    return _measured(entries, params["size"], time.perf_counter() - started)


@case("read.tail")
def tail(params: Params, folder: str) -> Measured:
    """Entries that were just written, from the write cache."""

    async def measure(store: Store) -> Measured:
        (writer,) = await writers_of(store, 1)
        await append_all([writer], os.urandom(params["size"]), params["count"])
        await writer.close()
        reader = await store.client.open(writer.ledger_id)
        try:
            return await _timed(reader, params)
        finally:
            await reader.close()

    return on_store(params, folder, measure)


@case("read.cold")
def cold(params: Params, folder: str) -> Measured:
    """Entries that no memory holds: flushed, the bookie restarted, the page cache dropped."""

    async def measure(store: Store) -> Measured:
        (writer,) = await writers_of(store, 1)
        await append_all([writer], os.urandom(params["size"]), params["count"])
        await writer.close()
        assert store.local is not None
        await store.local.flush()
        await store.local.close()
        drop_page_cache(folder)
        again = await Bookie.open(store.runtime, bookie_settings(f"{folder}/b0", "b0", sync="always"))
        pool = store.client.context.pool
        assert isinstance(pool, RemoteBookiePool)
        pool.add_local(BookieId("b0"), again)
        client = LedgerClient(store.runtime, store.client.context.meta, pool)
        await client.start()
        reader = await client.open(writer.ledger_id)
        try:
            return await _timed(reader, params)
        finally:
            await reader.close()
            await client.close()
            await again.close()

    return on_store(params, folder, measure)
