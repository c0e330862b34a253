"""Messages of a queue that need not outlive the broker: in memory, as long as nobody else wants them in the log.

They have offsets of the topic like all others. They go to the log when the queue is no classic one that somebody
declared; when the topic has another subscription, a consumer of another protocol, or somebody who reads it by
offset (within the last hour); when its policies keep messages for later; when the memory for queues is used up.
"""

from collections.abc import Sequence

from weir.broker.context import BrokerContext
from weir.broker.log.producer_state_manager import ProducerStateManager
from weir.broker.subscriptions.subscription import Subscription
from weir.broker.subscriptions.subscription_state import cursor_key
from weir.broker.topics.topic_subscriptions import Subscriptions
from weir.model.batch import Run
from weir.model.cluster import UNWRITTEN
from weir.model.errors import WeirError
from weir.model.policies import DEFAULT_RETENTION, LogCompaction, Policies, Retention
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.runtime.tasks import TaskScope
from weir.stream.carried import Carried
from weir.stream.log import Stream
from weir.stream.state_log import StateLog

_READ_KEY = "memory/read"
#: How long somebody who reads by offset is waited for, and how often it is written down that he does.
_READER_MS = 3_600_000
_NOTED_MS = 600_000
#: Of the memory for queues: the rest is for queues that have no other place.
_USED_AT_MOST = 0.75


class TransientMessages:
    """Of one topic."""

    def __init__(
        self,
        context: BrokerContext,
        stream: Stream,
        state: StateLog,
        subscriptions: Subscriptions,
        producer_state: ProducerStateManager,
        *,
        tasks: TaskScope,
    ) -> None:
        self._clock = context.runtime.clock
        self._features = context.streams.features
        self._budget = context.streams.memory
        self._stream = stream
        self._state = state
        self._subscriptions = subscriptions
        self._producer_state = producer_state
        self._tasks = tasks
        self._carried = Carried(context.streams, stream, state)
        self._queue = False
        self._ready = False
        self._kept_for_later = False
        noted = state.get(_READ_KEY)
        #: When somebody read by offset.
        self._read_ms = self._noted_ms = 0 if noted is None else int(noted)
        stream.on_forgotten(producer_state.forgotten)

    async def open(self) -> None:
        """Go on with what the former broker had."""
        queue = self._subscriptions.by_name.get(QUEUE_SUBSCRIPTION)
        await self._carried.open(None if queue is None else queue.cursor)
        self._forget_carried()

    async def close(self) -> None:
        """Write down what the next broker shall have, and what is acknowledged of it."""
        if self._stream.unwritten is not None:
            self._mark_cursor()
            await self._carried.save(self._mark_cursor)

    def _mark_cursor(self) -> None:
        queue = self._subscriptions.by_name.get(QUEUE_SUBSCRIPTION)
        if queue is not None:
            self._state.mark(cursor_key(queue.name), queue.cursor.to_bytes)

    # --- who wants them ---------------------------------------------------------------------------------

    def allow(self) -> None:
        """The topic is a classic queue that somebody declared. What was never written is known by the index of
        what nobody sees: its place in the state is made first."""
        if self._queue:
            return
        self._queue = True
        self._note_reader()
        if self._producer_state.armed:
            self._ready = True
        else:
            self._producer_state.arm(self._armed)

    def _armed(self, failure: WeirError | None) -> None:
        self._ready = failure is None

    def apply(self, policies: Policies) -> None:
        """Somebody who sets a retention of his own, or has the topic compacted, wants to read it later."""
        self._kept_for_later = bool(
            policies.retention not in (None, Retention(), DEFAULT_RETENTION)
            or policies.compaction_threshold
            or (policies.log_compaction or LogCompaction()).cleanup.compacts
        )

    def read_by_offset(self) -> None:
        """Somebody does."""
        self._read_ms = self._clock.wall_ms()
        if self._queue:
            self._note_reader()
        if self._stream.end_offset > self._stream.written_to:
            self._stream.write_gap().add_done_callback(lambda done: done.exception())

    def _note_reader(self) -> None:
        if self._read_ms - self._noted_ms >= _NOTED_MS:
            self._noted_ms = self._read_ms
            self._state.put(_READ_KEY, b"%d" % self._read_ms)

    def takes(self, size: int) -> bool:
        """Whether messages of so many bytes are kept in memory."""
        return (
            self._ready
            and not self._kept_for_later
            and self._subscriptions.only_the_queue
            and self._budget.used_bytes + size <= _USED_AT_MOST * self._budget.limit_bytes
            and self._clock.wall_ms() - self._read_ms >= _READER_MS
            and self._features.uses(UNWRITTEN)
        )

    # --- what became of them ----------------------------------------------------------------------------

    def moved(self, subscription: Subscription, runs: Sequence[Run] | None) -> bool:
        """A cursor has moved; whether that must be written down. What is in memory only is gone with the broker,
        acknowledged or not."""
        unwritten = self._stream.unwritten
        if not unwritten or subscription.name != QUEUE_SUBSCRIPTION:
            return True
        passing = runs is not None and unwritten.only_here(runs)
        unwritten.forget(subscription.cursor)
        self._forget_carried()
        return not passing

    def _forget_carried(self) -> None:
        unwritten = self._stream.unwritten
        if self._carried.there and not (unwritten and unwritten.has_carried):
            self._carried.there = False
            self._tasks.spawn(self._carried.forget(), "forget what was carried over")
