"""A bookie's place in the metadata: its cookie, checked once, and its registration, kept up under a lease.

The cookie ties a bookie id to one disk for good. Without it, a bookie that comes back with an empty disk would
deny entries that it had acknowledged, and a recovery would believe it and cut the ledger short.

Whether the metadata is as new as a bookie's disk: ids of ledgers come from a counter that never goes back.

The counter is durable before an id of its block is used. So a disk that holds a higher id than the counter has
given out proves that the metadata lost its end (or is another cluster's); to go on would give ids out a second
time, and the bookie would take what it holds for deleted.

Ledgers that a bookie still holds although the metadata no longer knows them.

Deleting a ledger deletes its metadata first and then asks each bookie; one that was down then would keep it for
ever. So each bookie compares what it holds with the metadata from time to time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from typing import Protocol

from weir.meta import keys
from weir.meta.interfaces import ABSENT, Lease, MetaStore
from weir.model.diagnosis import Loss
from weir.model.errors import (
    BookieCookieError,
    BookieError,
    DiskError,
    LedgersUnknownError,
    MetaConflictError,
    MetaError,
)
from weir.model.ids import LedgerId
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.wire.metadata import BookieInfo, Cookie, decode_cookie, encode_bookie_info, encode_cookie

log = logging.getLogger(__name__)


async def check_cookie(meta: MetaStore, cookie: Cookie, *, holds_ledgers: bool) -> None:
    """Make sure that the metadata knows this very disk under its bookie id, or BookieCookieError.

    A disk that is new to the metadata is entered there, unless it `holds_ledgers` already: then it belongs to
    another cluster, and garbage collection would take its ledgers for deleted ones.
    """
    key = keys.cookie(cookie.bookie_id)
    while True:
        stored = await meta.get(key)
        if stored is not None:
            if decode_cookie(stored.value) != cookie:
                what = f"bookie id {cookie.bookie_id} was given to another disk, or this disk's cookie is damaged"
                hint = f"of a folder of weir up, weir verify says how to mend it; {BookieCookieError.hint}"
                raise BookieCookieError(what, hint=hint)
            return
        if holds_ledgers:
            raise BookieCookieError(
                f"the disk of bookie {cookie.bookie_id} holds ledgers, but this metadata store does not know it",
                hint="check --meta: it seems to name another cluster's store",
            )
        try:
            await meta.put(key, encode_cookie(cookie), expect=ABSENT)
            return
        except MetaConflictError:
            continue  # someone was faster; see with what


@dataclass(frozen=True, slots=True)
class RegistrationSettings:
    """How long the others believe in a bookie that they no longer hear, and how soon it tries again."""

    ttl_s: float = 10.0
    retry_s: float = 0.5
    close_timeout_s: float = 2.0


class Registration:
    """Tells the others where the bookie is and whether it takes entries. A lost lease is replaced by a new one."""

    def __init__(
        self, clock: Clock, meta: MetaStore, info: BookieInfo, settings: RegistrationSettings | None = None
    ) -> None:
        self._clock = clock
        self._meta = meta
        self._info = info
        self._settings = settings or RegistrationSettings()
        self._tasks = TaskScope(f"registration {info.bookie_id}")
        self._writable = True
        self._lease: Lease | None = None
        self._changed = asyncio.Event()
        self._registered = asyncio.Event()

    async def start(self, *, writable: bool, why: str = "") -> None:
        """Register, and keep it up from now on. Waits until the metadata store has it."""
        self._writable = writable
        self._info = replace(self._info, why="" if writable else why)
        self._tasks.spawn(self._keep(), "keep")
        await self._registered.wait()

    def set_writable(self, writable: bool, why: str = "") -> None:
        """Follow the bookie's state, and why it takes nothing; the others see it soon."""
        if writable != self._writable:
            self._writable = writable
            self._info = replace(self._info, why="" if writable else why)
            self._changed.set()

    async def close(self) -> None:
        """Unregister. If the store does not answer, the lease runs out by itself."""
        await self._tasks.close()
        if self._lease is not None:
            try:
                async with asyncio.timeout(self._settings.close_timeout_s):
                    await self._lease.revoke()
            except (MetaError, TimeoutError) as failure:
                log.warning("bookie %s could not unregister: %s", self._info.bookie_id, failure)

    async def _keep(self) -> None:
        while True:
            try:
                lease = self._lease
                if lease is None or not lease.alive:
                    lease = self._lease = await self._meta.lease(self._settings.ttl_s)
                    self._tasks.spawn(self._note_loss(lease), "lease")
                self._changed.clear()
                await self._publish(lease)
                self._registered.set()
                await self._changed.wait()
            except MetaError as failure:
                log.warning("bookie %s could not register: %s", self._info.bookie_id, failure)
                await self._clock.sleep(self._settings.retry_s)

    async def _note_loss(self, lease: Lease) -> None:
        await lease.lost()
        log.warning("bookie %s lost its lease, and registers again", self._info.bookie_id)
        self._changed.set()

    async def _publish(self, lease: Lease) -> None:
        """The new key first, then the old one goes: nobody ever sees the bookie under neither."""
        bookie_id = self._info.bookie_id
        key, other = keys.bookie_writable(bookie_id), keys.bookie_read_only(bookie_id)
        if not self._writable:
            key, other = other, key
        await self._meta.put(key, encode_bookie_info(self._info), lease=lease)
        await self._meta.delete(other)


#: No counter gives out more ids at a time.
_LARGEST_BLOCK = 1000


async def counts_ledgers(meta: MetaStore) -> bool:
    """Whether ids come from the counter here: not yet, or not where a client of bookies chooses its own."""
    return await meta.get(keys.LEDGER_COUNTER) is not None


async def check_ledger_ids(meta: MetaStore, highest: LedgerId) -> None:
    """LedgersUnknownError if the disk holds a ledger (`highest`) that the metadata has not made yet."""
    given_out = await _counter(meta, keys.LEDGER_COUNTER)
    if highest > given_out:
        raise LedgersUnknownError(
            f"the disk holds ledger {highest}, but the metadata has given out ids up to {given_out} only: its end"
            " is missing, with every topic, ledger and position that was made or changed since"
        )


async def pass_lost_ids(meta: MetaStore, highest: LedgerId, *, lost_changes: int | None) -> list[Loss]:
    """Move the counters past everything that lost metadata may have given out; what that shows to be lost.
    `lost_changes`: at least so many changes of the metadata are known to be gone; None if it is whole."""
    losses = []
    given_out = await _counter(meta, keys.LEDGER_COUNTER)
    if highest > given_out:
        what = (
            f"ledgers {given_out + 1} to {highest} are on the disk, and unknown to the metadata; they are deleted"
        )
        losses.append(Loss(keys.LEDGER_COUNTER, what))
    if losses or lost_changes is not None:
        margin = (1 + (lost_changes or 0)) * _LARGEST_BLOCK
        await _advance(meta, keys.LEDGER_COUNTER, max(given_out, highest) + margin)
        await _advance(meta, keys.PRODUCER_COUNTER, await _counter(meta, keys.PRODUCER_COUNTER) + margin)
    return losses


async def _counter(meta: MetaStore, key: str) -> int:
    found = await meta.get(key)
    return 0 if found is None else int(found.value)


async def _advance(meta: MetaStore, key: str, value: int) -> None:
    while True:
        found = await meta.get(key)
        if found is not None and int(found.value) >= value:
            return
        try:
            await meta.put(key, str(value).encode(), expect=ABSENT if found is None else found.version)
            return
        except MetaConflictError:
            continue  # someone else moved it: see how far


class Collects(Protocol):
    """The part of a bookie that is asked here; it asks for the live ledgers after it listed its own."""

    async def collect(self, live_ledgers: Callable[[], Awaitable[Collection[LedgerId]]]) -> int: ...


async def live_ledgers(meta: MetaStore) -> list[LedgerId]:
    """Every ledger that the metadata has."""
    listing = await meta.list(keys.LEDGERS)
    return [keys.ledger_id_of(item.key) for item in listing.items]


async def watch_for_orphans(bookie: Collects, meta: MetaStore, clock: Clock, *, interval_s: float) -> None:
    """Have the bookie delete its orphans from time to time; a failure waits for the next time."""
    while True:
        await clock.sleep(interval_s)
        try:
            deleted = await bookie.collect(lambda: live_ledgers(meta))
        except (MetaError, BookieError, DiskError) as failure:
            log.warning("could not look for deleted ledgers: %s", failure)
            continue
        if deleted:
            log.info("%d ledgers that the metadata no longer has were deleted", deleted)
