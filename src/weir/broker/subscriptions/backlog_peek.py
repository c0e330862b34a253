"""Peek at the backlog of a subscription: its unacknowledged messages in delivery order, without delivering
them."""

from collections.abc import Callable, Iterator, Sequence

from weir.broker.log.log_feed import ReadCommittedLog
from weir.broker.subscriptions.queue_mode import LevelsOf
from weir.model.batch import Batch, BatchFlags
from weir.model.errors import NotAllowedError, OffsetTrimmedError
from weir.stream.cursor import Cursor

_LOOK_BYTES = 1 << 20
#: Messages of a priority queue that a peek scans to find those with the highest priority.
_MOST_SORTED = 10_000

#: A batch, and the index of the message in it.
Place = tuple[Batch, int]


async def waiting_messages(
    source: ReadCommittedLog, cursor: Cursor, count: int, levels_of: LevelsOf | None = None
) -> list[Place]:
    """Return the first `count` messages. `levels_of`: set for a priority queue; the highest level sorts first."""
    wanted = count if levels_of is None else max(count, _MOST_SORTED)
    found: list[Place] = []
    offset = source.start_offset
    while len(found) < wanted:
        offset = max(cursor.next_unacked(offset), source.start_offset)
        if offset >= source.end_offset or not (batches := await source.read(offset, _LOOK_BYTES)):
            break
        for batch in batches:
            found += _unacknowledged(source, cursor, batch, offset)
        offset = batches[-1].end_offset
    if levels_of is None:
        return found[:count]
    return [place for _, place in sorted(_levelled(found, levels_of), key=lambda one: -one[0])[:count]]


def _unacknowledged(source: ReadCommittedLog, cursor: Cursor, batch: Batch, first: int) -> list[Place]:
    visible = source.visible(batch)
    bits = cursor.unacked_mask(batch.base_offset, batch.count)
    bits &= bits if visible is None else visible
    bits = bits >> (below := max(0, first - batch.base_offset)) << below
    return [(batch, index) for index in range(batch.count) if bits >> index & 1]


def _levelled(found: list[Place], levels_of: LevelsOf) -> Iterator[tuple[int, Place]]:
    last: Batch | None = None
    levels: Sequence[int] | None = None
    for batch, index in found:
        if batch is not last:
            last, levels = batch, levels_of(batch)
        yield (0 if levels is None else levels[index]), (batch, index)


async def batch_for(
    subscription: str, source: ReadCommittedLog, visible: Callable[[Batch], int | None], offset: int
) -> Batch:
    """Read the batch that holds this offset. `visible`: returns the visible messages of a batch as bits. Raises
    OffsetTrimmedError if the log holds no message at this offset (no longer, or not yet), and NotAllowedError if
    the message is not visible."""
    found = await source.read(offset, 1) if source.start_offset <= offset < source.end_offset else []
    if not found or not found[0].base_offset <= offset < found[0].end_offset:
        raise OffsetTrimmedError(f"the topic has no message at offset {offset}")
    batch = found[0]
    if not _is_seen(batch, visible(batch), offset):
        raise NotAllowedError(
            f"the message at offset {offset} is not for subscription {subscription!r}: its filter leaves it out,"
            " or its transaction was aborted",
            hint="change the filter, or send a copy of the message to the topic",
        )
    return batch


def _is_seen(batch: Batch, visible: int | None, offset: int) -> bool:
    if batch.flags is not BatchFlags.NONE and batch.flags & BatchFlags.UNSEEN:
        return False
    return visible is None or bool(visible >> (offset - batch.base_offset) & 1)


async def waiting_batch(source: ReadCommittedLog, cursor: Cursor, number: int) -> Batch | None:
    """Return the `number`th batch (counted from 1) that has an unacknowledged message."""
    offset = source.start_offset
    while True:
        offset = max(cursor.next_unacked(offset), source.start_offset)
        if offset >= source.end_offset or not (batches := await source.read(offset, _LOOK_BYTES)):
            return None
        for batch in batches:
            first = max(offset, batch.base_offset)
            if source.visible(batch) == 0 or cursor.all_acked(first, batch.end_offset):
                continue
            number -= 1
            if number == 0:
                return batch
        offset = batches[-1].end_offset


async def oldest_unacked(
    source: ReadCommittedLog, cursor: Cursor, known: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Return the first unacknowledged offset and its append time; None if the backlog is empty. `known`: the last
    answer, which is reused if it is still valid."""
    first = max(cursor.next_unacked(0), source.start_offset)
    if first >= source.end_offset or not source.backlog(cursor):
        return None
    if known is not None and known[0] == first:
        return known
    batches = await source.read(first, 1)
    return (first, batches[0].append_ms) if batches else None
