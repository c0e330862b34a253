"""A broker's side of a copy of the cluster: it is asked in the metadata to hold its writes, and answers there.

`hold`: no write is begun, and the ends of all ledgers that are written to here are told. `copy`: writes go on, but
no ledger is deleted; told is whether the hold was unbroken until then, and which ledgers were begun meanwhile, in
which nothing is. The request is under the lease of whoever makes the copy: when that is gone, all is as before.
"""

import json
import logging
from collections.abc import Sequence

from weir.ledger.client import LedgerClient
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.model.errors import MetaError, WeirError
from weir.model.ids import LedgerId
from weir.runtime.interfaces import Runtime, Timer
from weir.runtime.tasks import TaskScope

log = logging.getLogger(__name__)

HOLD, COPY = "hold", "copy"
#: Writes wait no longer, whatever becomes of whoever asked for it.
LONGEST_S = 20.0
_LEDGERS_PER_PART = 20_000
_PAUSE_S = 1.0


class BackupHold:
    def __init__(self, runtime: Runtime, meta: MetaStore, ledgers: LedgerClient, broker_id: str) -> None:
        """`meta`: the store itself, which waits for no hold."""
        self._clock = runtime.clock
        self._meta = meta
        self._ledgers = ledgers
        self._hold = ledgers.context.hold
        self._broker_id = broker_id
        self._tasks = TaskScope("backup-hold")
        #: The request that writes are, or were last, held for; and the ledgers that were told of.
        self._request = ""
        self._told: dict[int, int] = {}
        self._limit: Timer | None = None

    def start(self) -> None:
        self._tasks.spawn(self._follow(), "follow")

    async def close(self) -> None:
        await self._tasks.close()
        self._end_hold()

    async def _follow(self) -> None:
        while True:
            try:
                listing = await self._meta.list(keys.BACKUP_REQUEST)
                await self._obey(listing.items[0].value if listing.items else None)
                async for change in self._meta.watch(keys.BACKUP_REQUEST, since=listing.revision):
                    await self._obey(change.value)
            except MetaError as failure:
                log.info("requests for copies cannot be followed: %s", failure)
            except (ValueError, KeyError, TypeError) as wrong:
                log.warning("a request for a copy is not understood: %r", wrong)
            await self._clock.sleep(_PAUSE_S)

    async def _obey(self, value: bytes | None) -> None:
        if value is None:
            self._end_hold()
            if self._hold.keeps:
                log.info("the copy of the cluster is done, or given up")
                for ledger_id in self._hold.let_go():
                    self._tasks.spawn(self._delete(ledger_id), "delete")
            return
        said = json.loads(value)
        request, step = str(said["id"]), str(said["step"])
        if step == HOLD and request != self._request:
            await self._begin(request)
        elif step == COPY and request == self._request:
            await self._go_on(request)

    async def _begin(self, request: str) -> None:
        self._request = request
        self._hold.begin()
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self._clock.call_later(LONGEST_S, self._end_hold)
        self._told = {int(ledger): int(end) for ledger, end in self._hold.ends()}
        log.info("writes are held for a copy of the cluster: %s ledgers are open", len(self._told))
        await self._answer(request, HOLD, list(self._told.items()))

    async def _go_on(self, request: str) -> None:
        unbroken = self._hold.on
        new = [(int(ledger), -1) for ledger, _ in self._hold.ends() if int(ledger) not in self._told]
        self._end_hold()
        await self._answer(request, COPY, new if unbroken else None)

    async def _answer(self, request: str, step: str, ends: Sequence[tuple[int, int]] | None) -> None:
        """None: writes were not held all the time."""
        parts = (
            [ends[at : at + _LEDGERS_PER_PART] for at in range(0, len(ends), _LEDGERS_PER_PART)] if ends else []
        )
        for number, part in enumerate(parts, 1):
            await self._put(request, step, number, {"ends": part})
        await self._put(request, step, 0, {"unbroken": ends is not None, "parts": len(parts)})

    async def _put(self, request: str, step: str, part: int, fields: object) -> None:
        """Whoever asked removes it; what is left of one who died goes with the next."""
        await self._meta.put(keys.backup_answer(request, step, self._broker_id, part), json.dumps(fields).encode())

    def _end_hold(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        if self._hold.on:
            self._hold.end()

    async def _delete(self, ledger_id: LedgerId) -> None:
        try:
            await self._ledgers.delete(ledger_id)
        except WeirError as failure:
            log.warning("ledger %s is not deleted: %s", ledger_id, failure)
