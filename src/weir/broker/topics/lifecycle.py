"""How the logs of a topic are ended: closed, or passed on to the next broker as they are.

Passing a topic on to the next broker: ends of its ledgers that are written down when that has it already.

Whether a topic is served here: until it is closed, or somebody else has taken its log over.

Who wants to hear that a topic has grown: gateways that wait for messages by offset.
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


class Life:
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
            raise TopicClosedError(f"{self._name} is not served here any more: {why}")

    def on_death(self, callback: Callable[[], None]) -> None:
        """Call a plain function, soon, once the topic is of no more use."""
        self._dead.add_done_callback(lambda _: callback())

    def closing(self) -> None:
        """By this broker itself: nobody is told of a death."""
        self.alive = False

    def die(self, why: str) -> None:
        self.alive = False
        self._dead.set_result(why)


class GrowthListeners:
    """Called in the order of coming; each may stop itself, or others, while they are called."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[], None]] = {}
        #: Those of the broker itself.
        self._own: dict[int, None] = {}
        self._count = 0

    def add(self, callback: Callable[[], None], *, own: bool = False) -> Callable[[], None]:
        """Answers how to stop."""
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
        """How many of them act for clients."""
        return len(self._callbacks) - len(self._own)

    def tell(self) -> None:
        if self._callbacks:  # most topics have none, and grow often
            for callback in list(self._callbacks.values()):
                callback()


log = logging.getLogger(__name__)

#: Tells the next broker how a topic was left; whether it knows.
PassOn = Callable[[Left], Awaitable[bool]]

_GRACE_S = 5.0


class LeftLedgers:
    """Ledgers that are closed in the background, when nobody waits for anything else any more. One that is not is
    closed by whoever reads it."""

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
        except WeirError as failed:  # its reader was faster, or has deleted it
            log.info("ledger %s is left as it is: %s", writer.ledger_id, failed)

    async def close(self) -> None:
        """Wait for them, within a limit."""
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
