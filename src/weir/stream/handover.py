"""Streams that are about to be this broker's: taken over as soon as their holders leave them, with ledgers made
ahead of their messages.

None of it is needed. What nobody asks for within a while is let go of.

What the holder of a stream leaves to the next one: all that this would have to read, and to close, to take it
over.

It counts while the chain in the metadata has the version that it is told with. Whoever takes a stream changes the
chain first, so nobody has appended anything since; and who left it has ended its own appends.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from weir.ledger.client import LedgerClient
from weir.ledger.writer import LedgerWriter
from weir.model.errors import WeirError
from weir.model.ids import LedgerId
from weir.model.ledger import Quorum
from weir.model.stream import Chain
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope

if TYPE_CHECKING:
    from weir.stream.chain import HeldChain


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """How far an open ledger was written, all of it acknowledged."""

    end_offset: int
    size_bytes: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Left:
    #: As it is in the metadata, with its version there.
    chain: Chain
    version: int
    #: Of the chain's open ledger; None if it has none.
    ledger: LedgerEnd | None
    state: Mapping[str, bytes]
    #: Whether some of the state is not written.
    unsaved: bool = False

    @property
    def last_ms(self) -> int:
        """When the last batch was appended; 0 if none ever was."""
        if self.ledger is not None:
            return self.ledger.last_ms
        return self.chain.spans[-1].last_ms if self.chain.spans else 0

    def taken(self, leader: int, opened: LedgerId | None, now_ms: int) -> Chain:
        """The chain of the next holder, in this leader epoch; `opened`: with a ledger of its own."""
        chain = self.chain
        if self.ledger is not None:
            chain = chain.with_closed(self.ledger.end_offset, self.ledger.size_bytes, self.ledger.last_ms)
        chain = replace(chain, epoch=chain.epoch + 1, leader=max(leader, chain.leader))
        return chain if opened is None else chain.with_opened(opened, now_ms)


log = logging.getLogger(__name__)

_KEPT_S = 30.0
#: More streams than this are taken as if nothing were known of them.
_MOST = 4096


class Taken(NamedTuple):
    """A stream that is this broker's already, and whose ledger, if it has one, nobody has written to."""

    chain: "HeldChain"
    left: Left
    writer: LedgerWriter | None


class ComingStreams:
    def __init__(self, clock: Clock, ledgers: LedgerClient, quorum: Quorum) -> None:
        self._clock = clock
        self._ledgers = ledgers
        self._quorum = quorum
        self._taken: dict[str, asyncio.Task[Taken | None]] = {}
        self._made: dict[str, asyncio.Task[LedgerWriter | None]] = {}
        self._tasks = TaskScope("streams that come")

    # --- taken over ahead -----------------------------------------------------------------------------------

    def take(self, name: str, taking: Coroutine[Any, Any, Taken]) -> None:
        """Its holder has left it: it is taken over meanwhile, before somebody opens it."""
        if len(self._taken) >= _MOST:
            taking.close()
            return
        task = self._tasks.spawn(self._quiet(name, taking), f"take {name}")
        before = self._taken.pop(name, None)
        if before is not None:
            self._tasks.spawn(self._leave(before), f"leave {name}")
        self._taken[name] = task
        self._clock.call_later(_KEPT_S, lambda: self._forget(name, task))

    async def _quiet(self, name: str, taking: Coroutine[Any, Any, Taken]) -> Taken | None:
        try:
            return await taking
        except WeirError as failed:
            log.info("stream %s is not as it was left, and will be read: %s", name, failed)
            return None

    async def is_taken(self, name: str) -> bool:
        """Whether it is this broker's, to whoever opens it next; waits for what is under way."""
        task = self._taken.get(name)
        if task is None:
            return False
        await asyncio.wait([task])
        if task.cancelled() or task.result() is None:
            self._forget(name, task)
            return False
        return True

    async def taken(self, name: str) -> Taken | None:
        """What there is of it, to whoever opens it; told once."""
        if not await self.is_taken(name):
            return None
        task = self._taken.pop(name, None)
        return None if task is None else task.result()

    def _forget(self, name: str, task: "asyncio.Task[Taken | None]") -> None:
        if self._taken.get(name) is task:
            del self._taken[name]
            self._tasks.spawn(self._leave(task), f"leave {name}")

    async def _leave(self, task: "asyncio.Task[Taken | None]") -> None:
        """Its ledger is left to whoever has the stream next, who closes it."""
        await asyncio.wait([task])
        taken = None if task.cancelled() else task.result()
        if taken is not None and taken.writer is not None:
            await taken.writer.abandon()

    # --- ledgers made ahead ---------------------------------------------------------------------------------

    async def make_ledger(self, name: str, above: LedgerId) -> None:
        """It will be written to as soon as it is here; `above`: its last ledger, or a later one."""
        if name in self._made or len(self._made) >= _MOST:
            return
        making = self._made[name] = self._tasks.spawn(self._make(above), f"ledger for {name}")
        self._clock.call_later(_KEPT_S, lambda: self._unmake(name, making))
        await asyncio.wait([making])

    async def _make(self, above: LedgerId) -> LedgerWriter | None:
        try:
            return await self._ledgers.create(self._quorum, above=above)
        except WeirError as failed:
            log.info("no ledger is made ahead: %s", failed)
            return None

    async def ledger(self, name: str, above: LedgerId | None) -> LedgerWriter | None:
        """The one that was made for it, if its id is above that; given once."""
        making = self._made.pop(name, None)
        if making is None:
            return None
        await asyncio.wait([making])
        writer = None if making.cancelled() else making.result()
        if writer is None or (writer.failure is None and (above is None or writer.ledger_id > above)):
            return writer
        self._tasks.spawn(self._discard(making), f"discard the ledger for {name}")
        return None

    def _unmake(self, name: str, making: "asyncio.Task[LedgerWriter | None]") -> None:
        if self._made.get(name) is making:
            del self._made[name]
            self._tasks.spawn(self._discard(making), f"discard the ledger for {name}")

    async def _discard(self, making: "asyncio.Task[LedgerWriter | None]") -> None:
        await asyncio.wait([making])
        writer = None if making.cancelled() else making.result()
        if writer is not None:
            try:
                await writer.abandon()
                await self._ledgers.delete(writer.ledger_id)
            except WeirError as failed:
                log.info("ledger %s is left over: %s", writer.ledger_id, failed)

    async def close(self) -> None:
        """Let go of everything at once."""
        made, self._made = self._made, {}
        taken, self._taken = self._taken, {}
        await asyncio.gather(*map(self._discard, made.values()), *map(self._leave, taken.values()))
        await self._tasks.close()
