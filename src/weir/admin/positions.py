"""Message ids of the admin API and offsets, both ways."""

from weir.admin.bodies import MessageIdBody, ResetCursorData
from weir.broker.api import Position, Topic
from weir.model.batch import Batch


async def offset_at(topic: Topic, at: ResetCursorData, *, after: bool = False) -> int:
    """The offset of a message, or of the one after it if the id says so, or `after` does."""
    base = topic.offset_of(at.ledgerId, at.entryId)
    if at.ledgerId < 0:
        return base
    if at.batchIndex >= 0:
        base = min(base + at.batchIndex, topic.end_offset)
    if not (at.isExcluded or after) or base >= topic.end_offset:
        return base
    if at.batchIndex >= 0:
        return base + 1
    batch = await batch_at(topic, base)
    return base if batch is None else batch.end_offset


async def batch_at(topic: Topic, offset: int) -> Batch | None:
    """The batch that holds an offset; None if there is none."""
    if not topic.start_offset <= offset < topic.end_offset:
        return None
    found = await topic.read(offset, 1)
    return found[0] if found else None


def id_body(topic: Topic, position: Position) -> MessageIdBody:
    partition = -1 if topic.name.partition is None else topic.name.partition
    return MessageIdBody(position.ledger, position.entry, partition, position.batch_index)


def id_at(topic: Topic, offset: int) -> MessageIdBody:
    """Of an offset; of the end: where the next message will be."""
    return id_body(topic, Position(*topic.position_of(offset)))
