"""Appends: how many without waiting for each, and how long one takes."""

import asyncio
import os
import time
from collections import deque
from functools import partial

from bench.case import Measured, Params, case
from bench.stats import latencies_us
from bench.stores import Store, on_store
from weir.ledger.writer import LedgerWriter
from weir.model.ids import EntryId

#: A turn appends about this much before it lets the loop go on; so many turns may be unacknowledged.
_TURN_BYTES = 1024 * 1024
_TURN_ENTRIES = 1000
_TURNS_IN_FLIGHT = 16


async def writers_of(store: Store, count: int) -> list[LedgerWriter]:
    return [await store.client.create(store.quorum) for _ in range(count)]


async def append_all(writers: list[LedgerWriter], payload: bytes, count: int) -> None:
    """Append round-robin with a bounded window, and see every acknowledgement."""
    turn_entries = max(1, min(_TURN_ENTRIES, _TURN_BYTES // len(payload)))
    window: deque[list[asyncio.Future[EntryId]]] = deque()
    done = 0
    while done < count:
        first, done = done, min(done + turn_entries, count)
        if len(writers) == 1:
            append = writers[0].append
            window.append([append(payload) for _ in range(first, done)])
        else:
            window.append([writers[i % len(writers)].append(payload) for i in range(first, done)])
        if len(window) > _TURNS_IN_FLIGHT:
            await _acknowledged(window.popleft())
        await asyncio.sleep(0)
    while window:
        await _acknowledged(window.popleft())


async def append_bursts(writers: list[LedgerWriter], payload: bytes, count: int, burst: int) -> None:
    """A turn of the loop appends a burst to one ledger, the next turn to another: an add is as large with many
    ledgers as with one."""
    window: deque[list[asyncio.Future[EntryId]]] = deque()
    stride = max(1, len(writers) // 7)  # far apart, so that the next ledger is not a neighbour in memory
    for number in range(count // burst):
        append = writers[number * stride % len(writers) if len(writers) > 1 else 0].append
        window.append([append(payload) for _ in range(burst)])
        if len(window) > _TURNS_IN_FLIGHT * _TURN_ENTRIES // burst:
            await _acknowledged(window.popleft())
        await asyncio.sleep(0)
    while window:
        await _acknowledged(window.popleft())


async def _acknowledged(futures: list["asyncio.Future[EntryId]"]) -> None:
    for future in futures:
        await future


async def _warm_up(store: Store, params: Params) -> None:
    """Fill the write cache a few times: from then on flushes run and journal files are recycled."""
    writer = await store.client.create(store.quorum)
    await append_all([writer], bytes(64 * 1024), params.get("warm_mib", 0) * 16)
    await writer.close()


@case("append.throughput")
def throughput(params: Params, folder: str) -> Measured:
    """Appends as fast as they are taken."""
    payload, count = os.urandom(params["size"]), params["count"]

    async def measure(store: Store) -> Measured:
        await _warm_up(store, params)
        writers = await writers_of(store, params["ledgers"])
        await append_all(writers, payload, max(len(writers), count // 20))
        cpu, started = store.cpu_s(), time.perf_counter()
        await append_all(writers, payload, count)
        seconds = time.perf_counter() - started
        spent = store.cpu_s() - cpu
        return {
            "entries_s": count / seconds,
            "mb_s": count * len(payload) / 1e6 / seconds,
            "cpu_us": spent / count * 1e6,
            "cores": spent / seconds,
            "seconds": seconds,
        }

    return on_store(params, folder, measure)


def _note(taken: list[int], started: int, _: "asyncio.Future[EntryId]") -> None:
    taken.append(time.perf_counter_ns() - started)


@case("append.latency")
def latency(params: Params, folder: str) -> Measured:
    """Appends one at a time, each awaited before the next; with `rate`, so many per second, awaited or not."""
    payload, count = os.urandom(params["size"]), params["count"]

    async def one_at_a_time(writer: LedgerWriter, taken: list[int]) -> None:
        for _ in range(count):
            started = time.perf_counter_ns()
            await writer.append(payload)
            taken.append(time.perf_counter_ns() - started)

    async def at_a_rate(store: Store, writer: LedgerWriter, taken: list[int]) -> None:
        clock, loop_started = store.runtime.clock, time.perf_counter()
        last = writer.append(payload)
        for i in range(count):
            await clock.sleep(max(0.0, loop_started + i / params["rate"] - time.perf_counter()))
            started = time.perf_counter_ns()
            last = writer.append(payload)
            last.add_done_callback(partial(_note, taken, started))
        await last
        await asyncio.sleep(0)

    async def measure(store: Store) -> Measured:
        (writer,) = await writers_of(store, 1)
        taken: list[int] = []
        for _ in range(200):
            await writer.append(payload)
        if params.get("rate"):
            await at_a_rate(store, writer, taken)
        else:
            await one_at_a_time(writer, taken)
        return latencies_us(taken)

    return on_store(params, folder, measure)
