"""A moment in which this node begins no write: what is under way ends, all else waits. For copies of a cluster.

What is written depends only on what was acknowledged before it. So if all nodes hold their writes at the same
time, whatever is seen of the cluster meanwhile is one moment: everything acknowledged before it, and nothing that
came of anything later.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol
from weakref import WeakSet

from weir.model.ids import EntryId, LedgerId


class HeldWriter(Protocol):
    """What `weir.ledger.writer.LedgerWriter` offers."""

    ledger_id: LedgerId

    @property
    def last_confirmed(self) -> EntryId: ...

    @property
    def ended(self) -> bool: ...


class WriteHold:
    """One per ledger client. `on`: writes wait. `keeps`: no ledger is deleted; whoever would has it done later."""

    def __init__(self) -> None:
        self.on = False
        self.keeps = False
        self._writers: WeakSet[HeldWriter] = WeakSet()
        self._waiting: list[Callable[[], None]] = []
        self._over = asyncio.Event()
        self._over.set()
        #: Ledgers that would have been deleted.
        self.postponed: dict[LedgerId, None] = {}

    def join(self, writer: HeldWriter) -> None:
        self._writers.add(writer)

    def ends(self) -> Iterator[tuple[LedgerId, EntryId]]:
        """Of each ledger that is written to here: its last acknowledged entry."""
        return ((one.ledger_id, one.last_confirmed) for one in list(self._writers) if not one.ended)

    def begin(self) -> None:
        self.on = self.keeps = True
        self._over.clear()

    def end(self) -> None:
        """Writes go on, those that waited first."""
        self.on = False
        self._over.set()
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def let_go(self) -> list[LedgerId]:
        """Ledgers may be deleted again; those that would have been."""
        self.keeps = False
        postponed, self.postponed = list(self.postponed), {}
        return postponed

    def when_over(self, go_on: Callable[[], None]) -> None:
        self._waiting.append(go_on)

    async def over(self) -> None:
        """Wait while writes wait."""
        while self.on:
            await self._over.wait()
