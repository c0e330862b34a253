"""Lifecycle of a served topic: liveness, growth listeners, and its end by close or by handover to the next broker.

A topic is alive until this broker closes it, or another broker takes its log over. After a handover, the former
owner closes the topic's last ledgers in the background: the next broker has the topic already.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from weir.ledger.writer import LedgerWriter
from weir.model.errors import TopicClosedError, WeirError
from weir.model.topics import TopicName
from weir.stream.handover import Left
from weir.stream.log import Stream
from weir.stream.state_log import StateLog


class Liveness:
    def __init__(self, name: TopicName) -> None:
        self._name = name
        self._dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.alive = True

    @property
    def dead(self) -> bool:
        return self._dead.done()

    def check(self) -> None:
        """TopicClosedError."""
        if not self.alive:
            why = self._dead.result() if self._dead.done() else "it is being closed"
            raise TopicClosedError(f"{self._name} is no longer served by this broker: {why}")

    def on_death(self, callback: Callable[[], None]) -> None:
        """Call a plain function soon after the topic dies."""
        self._dead.add_done_callback(lambda _: callback())

    def closing(self) -> None:
        """This broker closes the topic: callbacks of `on_death` do not run."""
        self.alive = False

    def die(self, why: str) -> None:
        self.alive = False
        self._dead.set_result(why)


class GrowthListeners:
    """Callbacks run in the order of registration; a callback may remove itself or others during the calls."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[], None]] = {}
        #: Callbacks of the broker itself.
        self._own: dict[int, None] = {}
        self._count = 0

    def add(self, callback: Callable[[], None], *, own: bool = False) -> Callable[[], None]:
        """Register a callback; returns the function that removes it."""
        self._count += 1
        number = self._count
        self._callbacks[number] = callback
        if own:
            self._own[number] = None

        def stop() -> None:
            self._callbacks.pop(number, None)
            self._own.pop(number, None)

        return stop

    @property
    def clients(self) -> int:
        """Number of callbacks that act for clients."""
        return len(self._callbacks) - len(self._own)

    def tell(self) -> None:
        if self._callbacks:  # most topics have none, and grow often
            for callback in list(self._callbacks.values()):
                callback()


log = logging.getLogger(__name__)

#: Sends the final state of a topic to the next broker; returns whether that accepted it.
PassOn = Callable[[Left], Awaitable[bool]]

_GRACE_S = 5.0


class LeftLedgers:
    """Ledgers of topics after a handover, which this broker closes in the background. If it does not close a
    ledger, the next reader does."""

    def __init__(self) -> None:
        self._left: list[LedgerWriter] = []
        self._closing: dict[asyncio.Task[None], None] = {}

    def add(self, writers: Sequence[LedgerWriter]) -> None:
        self._left += writers

    def close_soon(self) -> None:
        writers, self._left = self._left, []
        for writer in writers:
            task = asyncio.get_running_loop().create_task(self._close(writer), name=f"close {writer.ledger_id}")
            self._closing[task] = None
            task.add_done_callback(lambda done: self._closing.pop(done, None))

    async def _close(self, writer: LedgerWriter) -> None:
        try:
            await writer.close()
        except WeirError as failed:  # a reader has closed or deleted it
            log.info(
                "ledger %s was not closed after the handover (its next reader closes it): %s",
                writer.ledger_id,
                failed,
            )

    async def close(self) -> None:
        """Close all ledgers; wait for them for a limited time."""
        self.close_soon()
        if self._closing:
            await asyncio.wait(list(self._closing), timeout=_GRACE_S)
            late = list(self._closing)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


async def end_logs(
    stream: Stream, state: StateLog, mark_all: Callable[[], None], pass_on: PassOn | None
) -> list[LedgerWriter]:
    """Release or close both logs. Returns the ledgers that stay open because the next broker has received all that
    it needs. `mark_all`: sets the values that the state must contain before it is closed; without `pass_on`, the
    caller has called it already."""
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
    """Ledgers of which only the ends are still unwritten; None if the next broker did not accept the handover."""
    _, ended = await asyncio.gather(state.leave(), stream.end())
    if not ended or state.damaged or state.failure is not None:
        return None
    mark_all()  # includes all acknowledgements: the next broker does not read the log for them
    values, unsaved = state.contents()
    if not await pass_on(stream.leave(values, unsaved=unsaved)):
        return None
    writers = await asyncio.gather(state.release(), stream.release())
    return [writer for writer in writers if writer is not None]


async def _close(stream: Stream, state: StateLog) -> None:
    """Close both at once, because the next owner waits for them. When it opens the topic, it reads
    acknowledgements that are newer than the state from the log."""
    ended = await asyncio.gather(state.close(), stream.close(), return_exceptions=True)
    for failure in ended:
        if failure is not None:
            raise failure
