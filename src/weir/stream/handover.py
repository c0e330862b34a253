"""Handover of a stream to its next holder: the transferred data, and takeover ahead of the first open.

The former holder sends the next one everything that it would otherwise read or recover. The data is valid while
the chain in the metadata has the same version: each takeover changes the chain first, and the former holder ended
its own appends, so the stream has no later append.

The receiving broker takes the stream over, and creates its next ledger, before anything opens the stream. Both are
optional: the broker discards them if the stream is not opened within a time limit.
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
    """The end of an open ledger whose entries are all acknowledged."""

    end_offset: int
    size_bytes: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Left:
    #: The chain in the metadata, with its version there.
    chain: Chain
    version: int
    #: End of the chain's open ledger; None if it has none.
    ledger: LedgerEnd | None
    state: Mapping[str, bytes]
    #: Whether part of the state is not durable.
    unsaved: bool = False

    @property
    def last_ms(self) -> int:
        """When the last batch was appended; 0 if none ever was."""
        if self.ledger is not None:
            return self.ledger.last_ms
        return self.chain.spans[-1].last_ms if self.chain.spans else 0

    def taken(self, leader: int, opened: LedgerId | None, now_ms: int) -> Chain:
        """The chain of the next holder, in this leader epoch, with `opened` as its open ledger unless None."""
        chain = self.chain
        if self.ledger is not None:
            chain = chain.with_closed(self.ledger.end_offset, self.ledger.size_bytes, self.ledger.last_ms)
        chain = replace(chain, epoch=chain.epoch + 1, leader=max(leader, chain.leader))
        return chain if opened is None else chain.with_opened(opened, now_ms)


log = logging.getLogger(__name__)

_KEPT_S = 30.0
#: At most this many streams are taken over ahead; further ones get the normal takeover on open.
_MOST = 4096


class Taken(NamedTuple):
    """A stream that this broker has taken over already; its ledger, if any, is empty."""

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
        self._tasks = TaskScope("stream handover")

    # --- taken over ahead -----------------------------------------------------------------------------------

    def take(self, name: str, taking: Coroutine[Any, Any, Taken]) -> None:
        """Take a stream over in the background after its holder left it, before anything opens it."""
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
            log.info("stream %s: takeover after handover failed, its next open recovers it: %s", name, failed)
            return None

    async def is_taken(self, name: str) -> bool:
        """Whether this broker has taken the stream over for its next open; waits for a running takeover."""
        task = self._taken.get(name)
        if task is None:
            return False
        await asyncio.wait([task])
        if task.cancelled() or task.result() is None:
            self._forget(name, task)
            return False
        return True

    async def taken(self, name: str) -> Taken | None:
        """Return the stream that was taken over ahead, if any, once: to the first caller."""
        if not await self.is_taken(name):
            return None
        task = self._taken.pop(name, None)
        return None if task is None else task.result()

    def _forget(self, name: str, task: "asyncio.Task[Taken | None]") -> None:
        if self._taken.get(name) is task:
            del self._taken[name]
            self._tasks.spawn(self._leave(task), f"leave {name}")

    async def _leave(self, task: "asyncio.Task[Taken | None]") -> None:
        """Abandon the ledger of an unused takeover; the next holder closes it."""
        await asyncio.wait([task])
        taken = None if task.cancelled() else task.result()
        if taken is not None and taken.writer is not None:
            await taken.writer.abandon()

    # --- ledgers made ahead ---------------------------------------------------------------------------------

    async def make_ledger(self, name: str, above: LedgerId) -> None:
        """Create the next ledger of a stream that will move here, with an id above `above`: the id of the stream's
        last ledger, or a higher one."""
        if name in self._made or len(self._made) >= _MOST:
            return
        making = self._made[name] = self._tasks.spawn(self._make(above), f"ledger for {name}")
        self._clock.call_later(_KEPT_S, lambda: self._unmake(name, making))
        await asyncio.wait([making])

    async def _make(self, above: LedgerId) -> LedgerWriter | None:
        try:
            return await self._ledgers.create(self._quorum, above=above)
        except WeirError as failed:
            log.info("creating a ledger ahead of a handover failed: %s", failed)
            return None

    async def ledger(self, name: str, above: LedgerId | None) -> LedgerWriter | None:
        """Return the ledger that was created ahead, if its id is above `above`, once: to the first caller."""
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
                log.info("unused ledger %s was not deleted: %s", writer.ledger_id, failed)

    async def close(self) -> None:
        """Abandon all takeovers and delete all unused ledgers at once."""
        made, self._made = self._made, {}
        taken, self._taken = self._taken, {}
        await asyncio.gather(*map(self._discard, made.values()), *map(self._leave, taken.values()))
        await self._tasks.close()
