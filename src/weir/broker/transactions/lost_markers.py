"""Markers that were damaged in every copy: the decision is asked for, and stored again.

Without its marker a transaction would stay open in the topic for good, and everything behind its first message
unseen by those who want decided messages only. docs/adr/0021 says which decisions are still known.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from weir.broker.api import Receipt
from weir.broker.context import BrokerContext
from weir.broker.publish.publishing import Publisher
from weir.broker.topic.producer_state_manager import ProducerStateManager
from weir.model.batch import Stamp
from weir.model.errors import (
    NotOwnerError,
    StreamClosedError,
    StreamError,
    StreamFencedError,
    StreamTerminatedError,
    WeirError,
)
from weir.model.topics import TopicName
from weir.model.transactions import Fate
from weir.runtime.tasks import TaskScope
from weir.stream.log import Stream

log = logging.getLogger(__name__)

#: Between two looks at transactions that began before a loss and may still be open.
_LOOK_S = 1.0
#: The topic cannot take a marker any more, here or anywhere.
_OVER = (StreamClosedError, StreamFencedError, StreamTerminatedError)


class LostMarkers:
    """Of one topic. Costs nothing while nothing is lost. `settled` waits until it is known what failed appends
    left behind."""

    def __init__(
        self,
        context: BrokerContext,
        name: TopicName,
        stream: Stream,
        publisher: Publisher,
        producer_state: ProducerStateManager,
        *,
        tasks: TaskScope,
        settled: Callable[[], Awaitable[None]],
    ) -> None:
        self._gate = context.transactions
        self._clock = context.runtime.clock
        self._name = name
        self._stream = stream
        self._publisher = publisher
        self._producer_state = producer_state
        self._tasks = tasks
        self._settled = settled
        self._opened = False
        self._looking: asyncio.Task[None] | None = None

    def open(self) -> None:
        """What the log says is known by now."""
        self._opened = True
        if self._doubtful():
            self.look_soon()

    def _doubtful(self) -> list[int]:
        """Producers whose open transactions began before a loss, which may have taken their markers."""
        lost_to = max((run.end_offset for _, run in self._stream.lost), default=-1)
        return [
            who for who in self._producer_state.index.open_before(lost_to) if self._producer_state.is_open(who)
        ]

    def look_soon(self) -> None:
        """Messages were found lost."""
        if self._opened and self._looking is None:
            self._looking = self._tasks.spawn(self._look(), "look for lost markers")

    async def _look(self) -> None:
        try:
            while True:
                try:
                    await self._decide()
                except _OVER as over:
                    log.info("no marker is stored again in %s: %s", self._name, over)
                    return
                except WeirError as failed:
                    log.warning("markers of %s are lost, and tried again: %s", self._name, failed)
                if not self._producer_state.behind and not self._doubtful():
                    return
                await self._clock.sleep(_LOOK_S)
        finally:
            self._looking = None

    async def _decide(self) -> None:
        await self._settled()
        if self._producer_state.behind:
            return
        receipts = [await self._mark(who) for who in self._doubtful()]
        for receipt in receipts:
            if receipt is not None:
                await receipt

    async def _mark(self, producer_id: int) -> "asyncio.Future[Receipt] | None":
        states, index = self._producer_state.states, self._producer_state.index
        asked = index.open_since(producer_id), states.tip(producer_id)
        try:
            fate = await self._gate.fate(producer_id, self._name, states.seen_ms(producer_id))
        except StreamError as failed:  # of the coordinator's own topic
            raise NotOwnerError(f"the coordinator of transactions moves: {failed.what}") from failed
        # Nothing may have changed since it was asked: a transaction that begins meanwhile is not hit.
        if (index.open_since(producer_id), states.tip(producer_id)) != asked:
            return None
        if fate is Fate.OPEN:
            return None
        log.warning(
            "%s: the marker of producer %d is lost, whose transaction began at offset %d; stored again at %d: %s",
            self._name,
            producer_id,
            self._producer_state.index.open_since(producer_id),
            self._stream.end_offset,
            "aborted, since nobody knows how it ended" if fate is Fate.UNKNOWN else fate.value,
        )
        stamp = Stamp(producer_id, max(states.epoch(producer_id), 0))
        abort = fate is not Fate.COMMITTED
        return self._publisher.stamped.mark(stamp, abort=abort, decided_ms=self._clock.wall_ms())
