"""Marks on ledgers that have fewer copies than they should, with the bookies whose copies are in doubt."""

import json
import logging
from collections.abc import Collection
from typing import NamedTuple

from weir.ledger.context import LedgerContext
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec, upsert
from weir.model.errors import MetaConflictError, MetaError, WireError
from weir.model.ids import BookieId, LedgerId
from weir.model.ledger import LedgerMetadata
from weir.runtime.interfaces import Runtime

log = logging.getLogger(__name__)


class Mark(NamedTuple):
    """A ledger to be looked after."""

    ledger_id: LedgerId
    #: Bookies that are gone, or that missed entries while they failed.
    suspects: tuple[BookieId, ...]
    version: int


def encode_suspects(suspects: tuple[BookieId, ...]) -> bytes:
    return json.dumps({"v": 1, "bookies": suspects}, separators=(",", ":")).encode()


def decode_suspects(data: bytes) -> tuple[BookieId, ...]:
    try:
        return tuple(BookieId(str(bookie_id)) for bookie_id in json.loads(data)["bookies"])
    except (ValueError, KeyError, TypeError, RecursionError) as bad:
        raise WireError(f"a mark of an under-replicated ledger is malformed: {bad!r}") from bad


_CODEC: Codec[tuple[BookieId, ...]] = Codec(encode_suspects, decode_suspects)


class Marks:
    """The marks in the metadata."""

    def __init__(self, runtime: Runtime, meta: MetaStore) -> None:
        self._runtime = runtime
        self._meta = meta

    async def add(self, ledger_id: LedgerId, suspects: tuple[BookieId, ...]) -> None:
        """Mark the ledger, or add to its mark."""

        def merged(marked: tuple[BookieId, ...] | None) -> tuple[BookieId, ...]:
            known = marked or ()
            both = tuple(sorted(dict.fromkeys((*known, *suspects))))
            return known if marked is not None and both == known else both

        await upsert(self._meta, keys.underreplicated(ledger_id), _CODEC, merged, runtime=self._runtime)

    async def list(self) -> list[Mark]:
        """All marks, by ledger."""
        listing = await self._meta.list(keys.UNDERREPLICATED)
        return [
            Mark(keys.ledger_id_of(item.key), decode_suspects(item.value), item.version) for item in listing.items
        ]

    async def clear(self, mark: Mark) -> None:
        """Take the mark off, unless it was added to meanwhile."""
        try:
            await self._meta.delete(keys.underreplicated(mark.ledger_id), expect=mark.version)
        except MetaConflictError:
            return


async def mark_if_suspect(context: LedgerContext, ledger: LedgerMetadata, failed: Collection[BookieId]) -> None:
    """Have a ledger looked after that was just closed, if bookies that failed meanwhile hold a part of it. A hint:
    the ledger is closed all the same if it cannot be given."""
    suspects = tuple(bookie_id for bookie_id in ledger.bookies() if bookie_id in failed)
    if suspects:
        try:
            await Marks(context.runtime, context.meta).add(ledger.ledger_id, suspects)
        except MetaError as failure:
            log.warning("ledger %s is closed, but not marked for repair: %s", ledger.ledger_id, failure)
