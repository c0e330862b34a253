"""Listing what is held, by due moment, in bounded memory."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from weir.model.batch import HeldId
from weir.model.errors import LedgerNotFoundError
from weir.model.held import HeldItem
from weir.stream.holding.ledger import HeldLedger
from weir.stream.holding.reads import HeldReads
from weir.stream.holding.windows import DuePosition
from weir.wire.entry import Entry
from weir.wire.held import decode_held


def groups(ledgers: list[HeldLedger]) -> list[list[HeldLedger]]:
    """Ledgers in groups whose windows overlap, by time: everything in one is due before everything in the next."""
    found: list[list[HeldLedger]] = []
    end_ms = 0
    for ledger in sorted(ledgers, key=lambda ledger: (ledger.window, ledger.serial)):
        if found and ledger.window.first_ms < end_ms:
            found[-1].append(ledger)
        else:
            found.append([ledger])
        end_ms = max(end_ms, ledger.window.end_ms)
    return found


async def list_held(
    ledgers: list[HeldLedger], reads: HeldReads, after: DuePosition, limit: int
) -> AsyncGenerator[HeldItem, None]:
    """What is held beyond a place, by due moment. A group with more than `limit` entries is read again for each
    `limit` of them."""
    for group in groups(ledgers):
        while True:
            page = await _page(group, reads, after, limit)
            for place, item in page:
                yield item
                after = place
            if len(page) < limit:
                break


async def _page(
    group: list[HeldLedger], reads: HeldReads, after: DuePosition, limit: int
) -> list[tuple[DuePosition, HeldItem]]:
    """The first `limit` of the group beyond the place."""
    found: list[tuple[DuePosition, HeldItem]] = []
    for ledger in group:
        try:
            async with aclosing(reads.scan(ledger, 0, ledger.entries)) as chunks:
                async for chunk in chunks:
                    found += [(place, item) for place, item in _items(ledger, chunk) if place > after]
                    if len(found) > 2 * limit:
                        found = sorted(found, key=_by_place)[:limit]
        except LedgerNotFoundError:
            continue  # drained and dropped meanwhile
    return sorted(found, key=_by_place)[:limit]


def _items(ledger: HeldLedger, chunk: list[Entry]) -> Iterator[tuple[DuePosition, HeldItem]]:
    """What is held of a chunk."""
    for entry in chunk:
        if entry.entry_id not in ledger.done:
            due_ms, batch = decode_held(entry.payload)
            item = HeldItem(HeldId(ledger.ledger_id, entry.entry_id), due_ms, batch.count, len(batch))
            yield ledger.place(due_ms, entry.entry_id), item


def _by_place(found: tuple[DuePosition, HeldItem]) -> DuePosition:
    return found[0]
