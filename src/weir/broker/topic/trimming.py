"""Forgetting the beginning of a topic's log, in the order that a crash at any moment forgives."""

from collections.abc import Callable

from weir.broker.publish.publishing import Publisher
from weir.broker.topic.producer_state_manager import ProducerStateManager
from weir.broker.transactions.delayed_moves import DelayedMoves
from weir.stream.log import Stream
from weir.stream.state import StateLog


class Trimming:
    """Nothing is trimmed that the state does not know of yet: the log is where it would be learnt from again."""

    def __init__(
        self,
        stream: Stream,
        state: StateLog,
        *,
        publisher: Publisher,
        producer_state: ProducerStateManager,
        moves: DelayedMoves,
        trimmed: Callable[[int], None] = lambda start: None,
    ) -> None:
        """`trimmed`: told what the log begins with from then on."""
        self._stream = stream
        self._state = state
        self._publisher = publisher
        self._producer_state = producer_state
        self._moves = moves
        self._trimmed = trimmed

    async def forget_before(self, offset: int) -> None:
        """Trim the stream, once everything that must not fall back behind it is persisted."""
        await self._moves.before_trim(offset)
        if self._publisher.holding is not None:
            await self._publisher.holding.before_trim(offset)
        self._publisher.dedup_switch.mark()
        self._producer_state.save()
        await self._state.flush()
        await self._stream.trim(offset)
        self._producer_state.trimmed()
        self._trimmed(self._stream.start_offset)
