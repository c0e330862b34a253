"""Transient messages of a queue: the broker keeps them in memory while only the queue's consumers need them.

They have offsets of the topic like all other messages. The broker writes them to the log instead if a client did
not declare the topic as a classic queue; if the topic has another subscription, a consumer of another protocol, or
a reader by offset (within the last hour); if its policies retain messages; or if the memory for queues is used up.
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
#: How long a read by offset keeps messages in the log, and how often the time of the last read is stored.
_READER_MS = 3_600_000
_NOTED_MS = 600_000
#: Share of the memory for queues. The rest is reserved for queues that exist in memory only.
_USED_AT_MOST = 0.75


class TransientMessages:
    """The transient messages of one topic: decides whether they stay in memory, and hands them over."""

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
        #: Time of the last read by offset.
        self._read_ms = self._noted_ms = 0 if noted is None else int(noted)
        stream.on_forgotten(producer_state.forgotten)

    async def open(self) -> None:
        """Load the messages that the former broker handed over."""
        queue = self._subscriptions.by_name.get(QUEUE_SUBSCRIPTION)
        await self._carried.open(None if queue is None else queue.cursor)
        self._forget_carried()

    async def close(self) -> None:
        """Store the messages for the next broker, with the cursor of the queue."""
        if self._stream.unwritten is not None:
            self._mark_cursor()
            await self._carried.save(self._mark_cursor)

    def _mark_cursor(self) -> None:
        queue = self._subscriptions.by_name.get(QUEUE_SUBSCRIPTION)
        if queue is not None:
            self._state.mark(cursor_key(queue.name), queue.cursor.to_bytes)

    # --- memory or log ----------------------------------------------------------------------------------

    def allow(self) -> None:
        """Allow transient messages: a client declared the topic as a classic queue. The index of invisible offsets
        records the messages that were never written, so the producer state creates its entry first."""
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
        """A retention policy of its own or compaction means that clients read the topic later: use the log."""
        self._kept_for_later = bool(
            policies.retention not in (None, Retention(), DEFAULT_RETENTION)
            or policies.compaction_threshold
            or (policies.log_compaction or LogCompaction()).cleanup.compacts
        )

    def read_by_offset(self) -> None:
        """Record a read by offset, and write all messages that are in memory to the log."""
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
        """Whether messages of `size` bytes stay in memory."""
        return (
            self._ready
            and not self._kept_for_later
            and self._subscriptions.only_the_queue
            and self._budget.used_bytes + size <= _USED_AT_MOST * self._budget.limit_bytes
            and self._clock.wall_ms() - self._read_ms >= _READER_MS
            and self._features.uses(UNWRITTEN)
        )

    # --- acknowledgements -------------------------------------------------------------------------------

    def moved(self, subscription: Subscription, runs: Sequence[Run] | None) -> bool:
        """Called when a cursor moves; returns whether the new position must be stored. Messages in memory vanish
        with the broker, whether acknowledged or not."""
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
            self._tasks.spawn(self._carried.forget(), "forget transient messages of the former broker")
