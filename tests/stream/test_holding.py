"""The holding area: messages wait, are released once at their moment, and can be listed and cancelled."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from weir.model.batch import Batch, BatchFlags, BatchFormat, HeldId, Origin
from weir.model.errors import (
    BookieUnavailableError,
    NotHeldError,
    StreamBusyError,
    StreamClosedError,
    StreamFencedError,
    StreamTerminatedError,
)
from weir.stream.context import StreamContext
from weir.stream.holding import FOREVER_MS, HeldCount, HeldItem, HoldingArea, HoldingSettings
from weir.stream.log import Stream
from weir.stream.state import StateLog

DAY_MS = 24 * 3600 * 1000
#: What the requirement allows.
PROMPT_MS = 100


@dataclass
class Held:
    """A stream with its holding area, as one broker has them."""

    context: StreamContext
    stream: Stream
    state: StateLog
    area: HoldingArea

    @property
    def now(self) -> int:
        return self.context.runtime.clock.wall_ms()

    async def hold(self, text: str, in_ms: int, **fields: Any) -> HeldId:
        return await self.area.hold(draft(text, **fields), self.now + in_ms)

    async def sleep(self, ms: float) -> None:
        await self.context.runtime.clock.sleep(ms / 1000)

    async def released(self) -> list[Batch]:
        found: list[Batch] = []
        offset = self.stream.start_offset
        while batches := await self.stream.read(offset, 100_000):
            found += batches
            offset = batches[-1].end_offset
        return found

    async def texts(self) -> list[str]:
        return [text_of(batch) for batch in await self.released()]

    async def items(self, after: HeldItem | None = None) -> list[HeldItem]:
        return [item async for item in self.area.items(after)]

    async def close(self) -> None:
        await self.area.close()
        await self.state.close()
        await self.stream.close()


def draft(text: str, count: int = 1, origin: Origin | None = None) -> Batch:
    return Batch(-1, count, BatchFormat.PULSAR, 0, text.encode(), origin=origin)


def text_of(batch: Batch) -> str:
    return bytes(batch.payload).decode()


async def open_held(context: StreamContext, **settings: Any) -> Held:
    stream = await Stream.open(context, "t", create_missing=True)
    state = await stream.open_state()
    area = await HoldingArea.open(context, "t", stream, state, HoldingSettings(**settings))
    return Held(context, stream, state, area)


@asynccontextmanager
async def held_on(bench: Any, **settings: Any) -> AsyncIterator[Held]:
    held = await open_held(await bench.broker(), **settings)
    yield held
    await held.close()


Run = Callable[[Callable[[Any], Any]], None]


# --- releasing --------------------------------------------------------------------------------------------------


def test_a_message_is_released_at_its_moment_and_not_before(run: Run) -> None:
    async def scenario(bench: Any) -> None:
        async with held_on(bench) as held:
            due = held.now + 5000
            await held.hold("later", 5000)
            await held.sleep(4990)
            assert await held.texts() == []
            await held.sleep(10 + PROMPT_MS)
            [batch] = await held.released()
            assert text_of(batch) == "later"
            assert due <= batch.append_ms <= due + PROMPT_MS

    run(scenario)
