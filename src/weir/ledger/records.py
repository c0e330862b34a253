"""The ledgers' metadata records: created, read, watched, and changed only by compare-and-set."""

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.update import LEDGER, UpdateSettings, VersionedValue, create, read, update
from weir.model.errors import LedgerNotFoundError, MetaKeyMissingError, MetaUnavailableError
from weir.model.ids import LedgerId
from weir.model.ledger import LedgerMetadata
from weir.runtime.interfaces import Runtime
from weir.wire.metadata import decode_ledger

Transform = Callable[[LedgerMetadata], LedgerMetadata]


class Record(NamedTuple):
    """A ledger's metadata and the version it is at."""

    ledger: LedgerMetadata
    version: int


class LedgerRecords:
    """Where ledgers are written down. While the store does not answer, operations are tried as the settings say,
    then fail with MetaUnavailableError; a change may then have been made or not."""

    def __init__(self, runtime: Runtime, meta: MetaStore, settings: UpdateSettings) -> None:
        self._runtime = runtime
        self._meta = meta
        self._settings = settings

    async def create(self, ledger: LedgerMetadata) -> Record:
        """Write a new ledger down."""
        key = keys.ledger(ledger.ledger_id)
        made = await create(self._meta, key, LEDGER, ledger, runtime=self._runtime, settings=self._settings)
        return Record(made.value, made.version)

    async def get(self, ledger_id: LedgerId) -> Record:
        """The record as it is now, or LedgerNotFoundError."""
        attempts = self._settings.attempts
        while True:
            attempts -= 1
            try:
                found = await read(self._meta, keys.ledger(ledger_id), LEDGER)
            except MetaUnavailableError:
                if attempts <= 0:
                    raise
                await self._runtime.clock.sleep(self._settings.backoff_max_s / 2)
                continue
            if found is None:
                raise LedgerNotFoundError(f"there is no ledger {ledger_id}")
            return Record(found.value, found.version)

    async def change(self, ledger_id: LedgerId, transform: Transform, known: Record | None = None) -> Record:
        """Apply a transform (`weir.ledger.transitions`) to the record as it is; returns what it is then. What the
        transform raises is raised. `known` saves the first read, and may be out of date."""
        key = keys.ledger(ledger_id)
        try:
            changed = await update(
                self._meta,
                key,
                LEDGER,
                transform,
                runtime=self._runtime,
                settings=self._settings,
                known=None if known is None else VersionedValue(key, *known),
            )
        except MetaKeyMissingError:
            raise LedgerNotFoundError(f"there is no ledger {ledger_id} any more") from None
        return Record(changed.value, changed.version)

    async def delete(self, ledger_id: LedgerId) -> None:
        """Forget the ledger; fine if it is gone."""
        await self._meta.delete(keys.ledger(ledger_id))

    async def list(self) -> list[LedgerMetadata]:
        """Every ledger, by id."""
        listing = await self._meta.list(keys.LEDGERS)
        return [decode_ledger(item.value) for item in listing.items]

    async def watch(self, ledger_id: LedgerId, *, since: int) -> AsyncIterator[Record | None]:
        """Every state of the record after version `since`; None when it was deleted."""
        key = keys.ledger(ledger_id)
        async for change in self._meta.watch(key, since=since):
            if change.key == key:
                yield None if change.value is None else Record(decode_ledger(change.value), change.version)
