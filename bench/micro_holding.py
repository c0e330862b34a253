"""A million held messages over thirty days, on one bookie in this process: time and memory of each step.

    python -m bench.micro_holding [MESSAGES] [--json] [--no-releases]

Everything is real (disk, clock, fsync) but for the distance of the moments: a message due in 30 days is not waited
for. The lateness of releases is measured with messages due within the next seconds, while the million waits.
"""

import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from bench.stores import Store, on_store, rss_mb
from weir.model.batch import Batch, BatchFormat
from weir.stream.context import StreamContext
from weir.stream.holding.area import HoldingArea
from weir.stream.log import Stream
from weir.stream.settings import StreamSettings
from weir.stream.tail import TailCache

DAY_MS = 24 * 3600 * 1000
PAYLOAD = bytes(100)
#: Messages of the second part, and the seconds over which they are due.
SOON, SOON_S = 5_000, 10.0


@asynccontextmanager
async def opened(context: StreamContext) -> AsyncIterator[tuple[Stream, HoldingArea]]:
    stream = await Stream.open(context, "t", create_missing=True)
    state = await stream.open_state()
    area = await HoldingArea.open(context, "t", stream, state)
    yield stream, area
    await area.close()
    await state.close()
    await stream.close()


async def hold_all(area: HoldingArea, moments: list[int]) -> None:
    """Hold a message for each moment, as fast as they are taken."""
    batch = Batch(0, 1, BatchFormat.PULSAR, 0, PAYLOAD)
    last: asyncio.Future[object] | None = None
    for n, due_ms in enumerate(moments):
        last = area.hold(batch, due_ms)  # type: ignore[assignment]
        if n % 256 == 0:
            await area.wait_capacity()
            await asyncio.sleep(0)
    while (await area.count()).batches < len(moments):
        await asyncio.sleep(0.01)
    assert last is not None
    await last


async def lateness(stream: Stream, area: HoldingArea) -> list[int]:
    """How many milliseconds after its moment each message was appended."""
    first = time.time_ns() // 1_000_000 + 3000
    dice, start = Random(2), stream.end_offset
    moments = [first + int(dice.random() * SOON_S * 1000) for _ in range(SOON)]
    for n, due_ms in enumerate(moments):
        text = str(due_ms).encode()
        area.hold(Batch(0, 1, BatchFormat.PULSAR, 0, text), due_ms)
        if n % 64 == 0:
            await area.wait_capacity()
            await asyncio.sleep(0)
    late: list[int] = []
    offset = start
    while len(late) < SOON:
        await stream.wait_beyond(offset)
        for batch in await stream.read(offset, 1 << 20):
            late.append(batch.append_ms - int(bytes(batch.payload)))
            offset = batch.end_offset
    return sorted(late)


async def measure(store: Store, messages: int, *, releases: bool) -> dict[str, float]:
    context = StreamContext(
        store.runtime,
        store.client.context.meta,
        store.client,
        TailCache(8 << 20),
        StreamSettings(quorum=store.quorum),
    )
    dice = Random(1)
    now = time.time_ns() // 1_000_000
    moments = [now + 3_600_000 + int(dice.random() * 30 * DAY_MS) for _ in range(messages)]
    gc.collect()
    result = {"messages": float(messages), "rss before, MB": rss_mb()}
    async with opened(context) as (_, area):
        begun = time.perf_counter()
        await hold_all(area, moments)
        result["held per second"] = messages / (time.perf_counter() - begun)
        result["ledgers"] = len(area.positions())
        result["rss held, MB"] = rss_mb()
    begun = time.perf_counter()
    async with opened(context) as (stream, area):
        result["reopened in, ms"] = 1000 * (time.perf_counter() - begun)
        count = await area.count()
        assert count.batches == messages, count
        result["counted in, ms"] = 1000 * (time.perf_counter() - begun)
        next_due = await area.next_due()
        assert next_due == min(moments), (next_due, min(moments))
        result["next moment known in, ms"] = 1000 * (time.perf_counter() - begun)
        if releases:
            late = await lateness(stream, area)
            for name, part in (("median", 0.5), ("99 %", 0.99), ("most", 1.0)):
                result[f"late, {name}, ms"] = late[min(len(late) - 1, int(part * len(late)))]
        result["rss at the end, MB"] = rss_mb()
    result["cpu, s"] = sum(os.times()[:2])
    return result


def main() -> None:
    numbers = [argument for argument in sys.argv[1:] if argument.isdigit()]
    messages = int(numbers[0]) if numbers else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        releases = "--no-releases" not in sys.argv
        result = on_store({"store": "process"}, folder, lambda store: measure(store, messages, releases=releases))
    if "--json" in sys.argv:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:<28}{value:12.1f}")


if __name__ == "__main__":
    main()
