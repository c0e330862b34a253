"""A bookie's place in the metadata: its cookie, checked once, and its registration, kept up under a lease.

The cookie ties a bookie id to one disk for good. Without it, a bookie that comes back with an empty disk would
deny entries that it had acknowledged, and a recovery would believe it and cut the ledger short.
"""

import asyncio
import logging
from dataclasses import dataclass, replace

from weir.meta import keys
from weir.meta.interfaces import ABSENT, Lease, MetaStore
from weir.model.errors import BookieCookieError, MetaConflictError, MetaError
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
