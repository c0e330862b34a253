"""Deleting a stream by its name, with every ledger that it or its state names."""

from collections.abc import Awaitable, Callable

from weir.model.errors import LedgerNotFoundError, StreamNotFoundError
from weir.model.ids import LedgerId
from weir.stream import carried, compaction
from weir.stream.context import StreamContext
from weir.stream.holding import ledger as holding_ledger
from weir.stream.key_index import index as key_index
from weir.stream.log import Stream


async def erase(context: StreamContext, name: str, *, confirm: Callable[[], Awaitable[None]]) -> None:
    """Take the stream over and delete it; fine if it is gone.

    `confirm` is asked once the stream is held, and raises if it must stay. That order makes it safe for whoever is
    late: a stream made anew under the name is either seen by `confirm`, or made after it, and then this holder is
    fenced and deletes nothing (StreamFencedError)."""
    try:
        stream = await Stream.open(context, name)
    except StreamNotFoundError:
        return
    try:
        also = await _named_by_the_state(stream)
        await confirm()
        await stream.delete(also)
    finally:
        await stream.close()


async def _named_by_the_state(stream: Stream) -> tuple[LedgerId, ...]:
    try:
        state = await stream.open_state()
    except LedgerNotFoundError:
        return ()  # nothing can be known of them any more
    try:
        return (
            *holding_ledger.ledgers_in(state),
            *compaction.ledgers_in(state),
            *carried.ledgers_in(state),
            *key_index.ledgers_in(state),
        )
    finally:
        await state.close()
