"""A bookie in the metadata: its cookie, its registration, the check of ledger ids, and the deletion of orphans.

The cookie binds a bookie id to one disk. Without it, a bookie that restarts with an empty disk would deny entries
that it had acknowledged, and a recovery would believe it and cut the ledger short. A lease keeps the registration.

Ids of ledgers are taken from a counter that never decreases, and the counter is durable before any id of its block
is in use. So a disk with a higher id than the counter proves that the metadata lost its end (or belongs to another
cluster); continuing would issue ids a second time, and the bookie would treat its ledgers as deleted.

Deleting a ledger deletes its metadata first and then sends a request to each bookie; a bookie that was down at
that time would keep the ledger forever. So each bookie compares its ledgers with the metadata at intervals.
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
    """Check that the metadata has this disk under its bookie id; otherwise raise BookieCookieError.

    Registers a new disk, unless it `holds_ledgers` already: then it belongs to another cluster, and garbage
    collection would treat its ledgers as deleted.
    """
    key = keys.cookie(cookie.bookie_id)
    while True:
        stored = await meta.get(key)
        if stored is not None:
            if decode_cookie(stored.value) != cookie:
                what = f"bookie id {cookie.bookie_id} was given to another disk, or this disk's cookie is damaged"
                hint = f"in a folder of weir up, run weir verify for repair steps; {BookieCookieError.hint}"
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
            continue  # a concurrent registration came first: compare again


@dataclass(frozen=True, slots=True)
class RegistrationSettings:
    """How long other nodes trust a silent bookie, and how soon it retries."""

    ttl_s: float = 10.0
    retry_s: float = 0.5
    close_timeout_s: float = 2.0


class Registration:
    """Announces the bookie's address and whether it accepts entries. Replaces a lost lease by a new one."""

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
        """Register and keep the registration. Returns once the metadata store has it."""
        self._writable = writable
        self._info = replace(self._info, why="" if writable else why)
        self._tasks.spawn(self._keep(), "keep")
        await self._registered.wait()

    def set_writable(self, writable: bool, why: str = "") -> None:
        """Publish the bookie's state, and the reason for read-only."""
        if writable != self._writable:
            self._writable = writable
            self._info = replace(self._info, why="" if writable else why)
            self._changed.set()

    async def close(self) -> None:
        """Unregister. If the store does not answer, the lease expires."""
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
                log.warning("bookie %s failed to register, retrying: %s", self._info.bookie_id, failure)
                await self._clock.sleep(self._settings.retry_s)

    async def _note_loss(self, lease: Lease) -> None:
        await lease.lost()
        log.warning("bookie %s lost its lease, registering again", self._info.bookie_id)
        self._changed.set()

    async def _publish(self, lease: Lease) -> None:
        """Put the new key, then delete the old one, so that the bookie is always under one of them."""
        bookie_id = self._info.bookie_id
        key, other = keys.bookie_writable(bookie_id), keys.bookie_read_only(bookie_id)
        if not self._writable:
            key, other = other, key
        await self._meta.put(key, encode_bookie_info(self._info), lease=lease)
        await self._meta.delete(other)


#: The largest block of ids that a counter issues.
_LARGEST_BLOCK = 1000


async def counts_ledgers(meta: MetaStore) -> bool:
    """Whether the counter issues ledger ids; false before the first id, or if a client of bookies chooses its
    own."""
    return await meta.get(keys.LEDGER_COUNTER) is not None


async def check_ledger_ids(meta: MetaStore, highest: LedgerId) -> None:
    """LedgersUnknownError if the disk has a ledger (`highest`) that the metadata has not created yet."""
    given_out = await _counter(meta, keys.LEDGER_COUNTER)
    if highest > given_out:
        raise LedgersUnknownError(
            f"the disk holds ledger {highest}, but the metadata has given out ids up to {given_out} only: its end"
            " is missing, with every topic, ledger and position that was made or changed since"
        )


async def pass_lost_ids(meta: MetaStore, highest: LedgerId, *, lost_changes: int | None) -> list[Loss]:
    """Advance the counters beyond all ids that lost metadata may have issued; returns the losses that this
    reveals. `lost_changes`: the minimum number of lost metadata changes; None if the metadata is whole."""
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
            continue  # a concurrent change came first: read again


class Collects(Protocol):
    """The part of a bookie that this module uses; it calls `live_ledgers` after it listed its own ledgers."""

    async def collect(self, live_ledgers: Callable[[], Awaitable[Collection[LedgerId]]]) -> int: ...


async def live_ledgers(meta: MetaStore) -> list[LedgerId]:
    """Every ledger in the metadata."""
    listing = await meta.list(keys.LEDGERS)
    return [keys.ledger_id_of(item.key) for item in listing.items]


async def watch_for_orphans(bookie: Collects, meta: MetaStore, clock: Clock, *, interval_s: float) -> None:
    """Make the bookie delete its orphans at each interval; after a failure, retry at the next interval."""
    while True:
        await clock.sleep(interval_s)
        try:
            deleted = await bookie.collect(lambda: live_ledgers(meta))
        except (MetaError, BookieError, DiskError) as failure:
            log.warning("check for deleted ledgers failed: %s", failure)
            continue
        if deleted:
            log.info("deleted %d ledgers that the metadata no longer has", deleted)
