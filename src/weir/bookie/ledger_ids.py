"""Whether the metadata is as new as a bookie's disk: ids of ledgers come from a counter that never goes back.

The counter is durable before an id of its block is used. So a disk that holds a higher id than the counter has
given out proves that the metadata lost its end (or is another cluster's); to go on would give ids out a second
time, and the bookie would take what it holds for deleted.
"""

from weir.meta import keys
from weir.meta.interfaces import ABSENT, MetaStore
from weir.model.errors import LedgersUnknownError, MetaConflictError
from weir.model.ids import LedgerId
from weir.model.loss import Loss

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
