"""Opening, rolling or recovering the ledger of a stream: when it is due, and one at a time, in the background."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from weir.ledger.writer import LedgerWriter
from weir.model.errors import InvariantError, StreamFencedError, WeirError, WriterFencedError
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.stream.settings import StreamSettings

log = logging.getLogger(__name__)

_LEAST_ROLL_S = 1.0


class RollLimits:
    """When a ledger is full."""

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self.bytes, self.s = settings.roll_bytes, settings.roll_s

    def set(self, size_bytes: int, age_s: float) -> None:
        """A ledger is full at this size or age; what the settings say is the most. 0: what they say. More than one
        a second would be more work for the metadata than for the disk."""
        settings = self._settings
        self.bytes = min(size_bytes or settings.roll_bytes, settings.roll_bytes)
        self.s = min(max(age_s, _LEAST_ROLL_S) if age_s else settings.roll_s, settings.roll_s)

    def is_full(self, writer: LedgerWriter, age_s: float) -> bool:
        return (
            writer.length >= self.bytes
            or writer.last_confirmed + 1 >= self._settings.roll_entries
            or age_s >= self.s
        )


class TurnoverOwner(Protocol):
    """Whose ledger it is."""

    def die(self, failure: WeirError) -> None:
        """Nothing can be appended any more."""

    def turnover_failed(self, failure: WeirError) -> None:
        """There is no ledger for now."""

    def turned_over(self) -> None:
        """It is over, whatever came of it."""


class Turnover:
    def __init__(self, name: str, owner: TurnoverOwner, clock: Clock, pause_s: float) -> None:
        self._name = name
        self._owner = owner
        self._clock = clock
        self._pause_s = pause_s
        self._task: asyncio.Task[None] | None = None
        self._tasks = TaskScope(f"stream {name}", on_failure=self._broken)

    def __bool__(self) -> bool:
        """Whether one is under way."""
        return self._task is not None

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        self._task = self._tasks.spawn(self._run(work), "turnover")

    async def quiet(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        await self._tasks.close()

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (StreamFencedError, WriterFencedError) as fenced:
            self._owner.die(StreamFencedError(f"stream {self._name} was taken over: {fenced.what}"))
        except InvariantError:
            raise
        except WeirError as failed:
            log.warning("stream %s has no ledger to write to: %s", self._name, failed)
            self._owner.turnover_failed(failed)
            await self._clock.sleep(self._pause_s)
        finally:
            self._task = None
            self._owner.turned_over()

    def _broken(self, failure: BaseException) -> None:
        wrapped = InvariantError(f"{self._name}: {failure!r}")
        self._owner.die(failure if isinstance(failure, WeirError) else wrapped)
