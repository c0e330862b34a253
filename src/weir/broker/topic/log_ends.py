"""How the logs of a topic are ended: closed, or passed on to the next broker as they are."""

import asyncio
from collections.abc import Callable

from weir.broker.topic.passing import PassOn
from weir.ledger.writer import LedgerWriter
from weir.stream.log import Stream
from weir.stream.state import StateLog


async def end_logs(
    stream: Stream, state: StateLog, mark_all: Callable[[], None], pass_on: PassOn | None
) -> list[LedgerWriter]:
    """Let go of both; answers ledgers that are left open, where the next broker knows all that it needs.
    `mark_all`: sets what must be in the state before it is closed; it was called before if nothing is passed
    on."""
    if pass_on is not None:
        left = await _passed_on(stream, state, mark_all, pass_on)
        if left is not None:
            return left
        mark_all()
    await _close(stream, state)
    return []


async def _passed_on(
    stream: Stream, state: StateLog, mark_all: Callable[[], None], pass_on: PassOn
) -> list[LedgerWriter] | None:
    """None if the next broker does not know; else nothing is left to write but the ends of these ledgers."""
    _, ended = await asyncio.gather(state.leave(), stream.end())
    if not ended or state.damaged or state.failure is not None:
        return None
    mark_all()  # with all that was acknowledged: the log is not read for it
    values, unsaved = state.contents()
    if not await pass_on(stream.leave(values, unsaved=unsaved)):
        return None
    writers = await asyncio.gather(state.release(), stream.release())
    return [writer for writer in writers if writer is not None]


async def _close(stream: Stream, state: StateLog) -> None:
    """Both at once: who comes next waits for them. What is acknowledged after the state was written is read from
    the log when the topic is opened."""
    ended = await asyncio.gather(state.close(), stream.close(), return_exceptions=True)
    for failure in ended:
        if failure is not None:
            raise failure
