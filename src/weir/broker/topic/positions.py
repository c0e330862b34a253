"""Offsets of a stream as positions, (ledger, distance), and back."""

from weir.broker.api import Position
from weir.broker.topic.producer_state_manager import ProducerStateManager
from weir.model.batch import BatchFlags
from weir.stream.log import Stream


def position_of(stream: Stream, offset: int) -> tuple[int, int]:
    """Where the offset is; of the end: where the next message will be, or (-1, -1)."""
    found = stream.position_of(offset)
    if found is not None:
        return found
    spans = stream.chain.spans
    if spans and offset >= stream.end_offset:
        return spans[-1].ledger_id, stream.end_offset - spans[-1].first_offset
    return (-1, -1)


def offset_of(stream: Stream, ledger: int, entry: int) -> int:
    """The offset there, or the nearest that there is: see `api.Topic.offset_of`."""
    start, end = stream.start_offset, stream.end_offset
    if ledger < 0:
        return start
    for span in stream.chain.spans:
        if span.ledger_id == ledger:
            last = end if span.end_offset is None else span.end_offset
            return max(start, min(span.first_offset + max(entry, 0), last))
        if span.ledger_id > ledger:  # a ledger that stayed empty, or was trimmed away, before this one
            return max(start, span.first_offset)
    return end


async def last_position(stream: Stream, producer_state: ProducerStateManager) -> Position:
    """Of the last message that consumers see, with its index in its batch. What is lost nobody sees: a reader that
    goes on until it has the last message would wait for it for ever."""
    end = producer_state.stable_offset
    while True:
        last = producer_state.index.last_visible(stream.start_offset, end)
        if last is None:
            return Position(-1, -1)
        batch = (await stream.read(last, 1))[0]
        if not batch.flags & BatchFlags.LOST:
            break
        end = batch.base_offset
    ledger, entry = position_of(stream, batch.base_offset)
    return Position(ledger, entry, batch.count - 1 if batch.count > 1 else -1)
