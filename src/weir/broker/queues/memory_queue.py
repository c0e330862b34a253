"""A queue in the memory of one broker, without a topic. It ends with the broker or with its connection.

Its log contains batches with offsets, and drops them as soon as they are acknowledged.
"""

import asyncio
from collections.abc import Callable

from weir.broker.api.consumers import SubscribeRequest
from weir.broker.api.queues import QueueMessages
from weir.broker.context import BrokerContext
from weir.broker.dead_letters.letters import Origin
from weir.broker.dead_letters.outbox import DeadLetters, Outlets
from weir.broker.log.log_feed import ReadCommittedLog
from weir.broker.log.transaction_index import TransactionIndex
from weir.broker.queues.durable_queue import taken_of
from weir.broker.queues.local_queue import LocalQueue, QueueOwner
from weir.broker.queues.queue_limits import QueueLimitEnforcer
from weir.broker.rates import Histogram, Meter, RateLimit
from weir.broker.subscriptions.consumer import BrokerConsumer
from weir.broker.subscriptions.queue_mode import QueueMode, levels_in
from weir.broker.subscriptions.subscription import Subscription
from weir.broker.subscriptions.subscription_state import SubscriptionParts
from weir.model.batch import Batch, BatchFormat, Stamp
from weir.model.errors import QueueNotFoundError
from weir.model.policies import Priority, Rate
from weir.model.queues import QUEUE_SUBSCRIPTION, QueueDeclaration, QueueRules
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.runtime.budgets import ByteShare
from weir.runtime.interfaces import Timer
from weir.runtime.tasks import TaskScope
from weir.stream.cursor import Cursor
from weir.stream.unwritten import OVERHEAD_BYTES, MemoryBatches
from weir.wire.formats.messages import join_messages


class MemoryLog:
    """Implements `feed.Source` and `decided_log.Decisions`, without transactions. `share`: its memory budget."""

    def __init__(self, share: ByteShare) -> None:
        self._batches = MemoryBatches(share)
        self.end_offset = 0
        self.index = TransactionIndex()

    @property
    def start_offset(self) -> int:
        first = self._batches.first
        return self.end_offset if first is None else first

    @property
    def stable_offset(self) -> int:
        return self.end_offset

    def append(self, batch: Batch) -> None:
        """Append a batch; its base offset must be `end_offset`."""
        self._batches.append(batch)
        self.end_offset = batch.end_offset

    def read_cached(self, offset: int, max_bytes: int) -> list[Batch] | None:
        return self._batches.read(offset, max_bytes)

    async def read(self, offset: int, max_bytes: int) -> list[Batch]:
        return self._batches.read(offset, max_bytes)

    def forget(self, cursor: Cursor) -> None:
        self._batches.forget(cursor)

    def close(self) -> None:
        """Drop all batches: the queue is deleted."""
        self._batches.close()

    def __len__(self) -> int:
        """The number of stored batches."""
        return len(self._batches)


#: Most queues that send dead letters here whose last batch number is remembered.
_MOST_SENDERS = 1000


class _Forgetting:
    """Implements `subscription.CursorStore`: stores nothing, and drops acknowledged messages at once."""

    def __init__(self, acknowledged: Callable[[], None]) -> None:
        self._acknowledged = acknowledged

    def get(self, key: str) -> bytes | None:
        return None

    def put(self, key: str, value: bytes) -> None: ...

    def mark(self, key: str, source: Callable[[], bytes]) -> None:
        self._acknowledged()

    def delete(self, key: str) -> None: ...

    async def flush(self) -> None: ...


class MemoryQueue(LocalQueue):
    """Implements `api.Queue`. `connection`: the owner of an exclusive queue. `scope`: the topic name for
    permission checks; `share`: its part of the memory budget for queues."""

    def __init__(
        self,
        context: BrokerContext,
        owner: QueueOwner,
        declaration: QueueDeclaration,
        *,
        connection: str,
        scope: TopicName,
        share: ByteShare,
        tasks: TaskScope,
    ) -> None:
        super().__init__(owner, declaration, scope.namespace)
        self.connection = connection
        self._context = context
        self._clock = context.runtime.clock
        self.scope = scope
        self._share = share
        self._rules = owner.rules_of(declaration)
        self.side = QueueMode(Priority(self._rules.max_priority, 0), single_active=self._rules.single_active)
        self.log = MemoryLog(share)
        self.published = Meter(self._clock)
        self._held: dict[Timer, int] = {}
        source = ReadCommittedLog(self.log, self.log)
        self._subscription = Subscription(
            SubscriptionParts(
                self._clock,
                context.settings,
                self.log,
                source,
                source,
                _Forgetting(self._forget),
                tasks,
                context.keys_of,
                RateLimit(self._clock, Rate(), context.settings.rate_burst_s),
                Histogram(),
                None,
                lambda subscription: None,
                self.side,
                levels_in(context.formats),
                label=f"queue {self.name!r}",
                consumer_limit=context.consumer_limit,
            ),
            QUEUE_SUBSCRIPTION,
            Cursor(),
            durable=True,
        )
        letters = DeadLetters(
            Origin(self.name, None, QUEUE_SUBSCRIPTION),
            self.log,
            owner,
            outlets=Outlets(
                lambda ranges: self._subscription.ack(None, ranges),
                self._subscription.failing.again,
                self._subscription.deliveries.of,
            ),
            store=None,
            runtime=context.runtime,
            tasks=tasks,
        )
        self.keeper = self.side.hooks = QueueLimitEnforcer(self, letters, 0, runtime=context.runtime, tasks=tasks)
        self._subscription.apply_retry(self._rules.retry)
        #: The last batch number of each queue that sends dead letters here.
        self._parcels: dict[int, int] = {}
        self._done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._done.set_result(0)

    @property
    def rules(self) -> QueueRules:
        return self._rules

    def apply(self) -> None:
        """Apply changed rules, except the number of priorities, which only its arguments set."""
        self._rules = self._owner.rules_of(self.declaration)
        self._subscription.apply_retry(self._rules.retry)
        if self.keeper is not None:
            self.keeper.apply()

    @property
    def alive(self) -> bool:
        return not self.gone

    @property
    def subscription(self) -> Subscription:
        return self._subscription

    async def ensure_subscription(self) -> Subscription:
        if self.gone:
            raise QueueNotFoundError(f"no {self.said}")
        return self._subscription

    async def subscribe(self, request: SubscribeRequest, share: ByteShare | None) -> BrokerConsumer:
        self._context.guard.check(request.role, self.scope, Action.CONSUME, subscription=QUEUE_SUBSCRIPTION)
        return await self._subscription.subscribe(request, share)

    # --- publishing -------------------------------------------------------------------------------------

    def publish(self, messages: QueueMessages) -> "asyncio.Future[int]":
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self.gone:
            answer.set_exception(QueueNotFoundError(f"no {self.said}"))
            return answer
        if messages.stamp is not None and self._has(messages.stamp):
            return self._done
        refused = 0 if self.keeper is None else self.keeper.admit(messages)
        if refused:
            messages = taken_of(messages, refused)
        if messages.encoded:
            self._put(messages)
        if not refused:
            return self._done
        answer.set_result(refused)
        return answer

    def _has(self, stamp: Stamp) -> bool:
        """Whether a batch with this stamp arrived before; records the stamp otherwise."""
        if self._parcels.get(stamp.producer_id, -1) >= stamp.epoch:
            return True
        self._parcels.pop(stamp.producer_id, None)
        if len(self._parcels) >= _MOST_SENDERS:
            del self._parcels[next(iter(self._parcels))]
        self._parcels[stamp.producer_id] = stamp.epoch
        return False

    def _put(self, messages: QueueMessages) -> None:
        payload, count = join_messages(messages.encoded), len(messages.encoded)
        wait_ms = 0 if messages.deliver_at_ms is None else messages.deliver_at_ms - self._clock.wall_ms()
        if wait_ms > 0:
            self._hold(payload, count, wait_ms / 1000)
        else:
            self._append(payload, count)

    def _append(self, payload: bytes, count: int) -> None:
        batch = Batch(self.log.end_offset, count, BatchFormat.MESSAGES, self._clock.wall_ms(), payload)
        self.published.count(count, len(payload))
        self.log.append(batch)
        self._subscription.pump()
        if self.keeper is not None:
            self.keeper.grown(self.log.end_offset)

    def _hold(self, payload: bytes, count: int, delay_s: float) -> None:
        """Keep a delayed message until its delivery time; it counts against the memory budget."""
        size = len(payload) + OVERHEAD_BYTES

        def due() -> None:
            del self._held[timer]
            self._share.release(size)
            self._append(payload, count)

        self._share.acquire(size)
        timer = self._clock.call_later(delay_s, due)
        self._held[timer] = size

    async def accepted(self) -> None:
        """Return at once: messages are visible immediately."""

    @property
    def has_capacity(self) -> bool:
        return not self._share.exhausted

    async def wait_capacity(self) -> None:
        await self._share.wait_capacity()

    def _forget(self) -> None:
        self.log.forget(self._subscription.cursor)

    def end(self, reason: str) -> None:
        """Delete the queue: close its consumers and drop its messages."""
        self.gone = True
        if self.keeper is not None:
            self.keeper.close()
        for timer in self._held:
            timer.cancel()
        self._held.clear()
        self._subscription.end(reason)
        self.log.close()
