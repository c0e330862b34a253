"""A stream: a topic that every consumer reads from where it likes, and takes nothing away from."""

from datetime import datetime
from itertools import count
from typing import Any

from weir.broker.api import ConsumeRequest, QueueCounts, StartAt, SubscribeRequest, SubscriptionType
from weir.broker.dispatch.subscription import Subscription
from weir.broker.queues.arguments import max_age_ms
from weir.broker.queues.consumers import LocalConsumer, StreamConsumer
from weir.broker.queues.durable import DurableQueue
from weir.broker.topic.topic import BrokerTopic
from weir.model.errors import QueueArgumentError, QueueNotFoundError, TopicClosedError
from weir.runtime.byte_budget import ByteShare

#: Subscriptions of streams' consumers, which end with them.
_PREFIX = "stream-"
_NUMBERS = count(1)


async def offset_in(topic: BrokerTopic, wanted: Any, now_ms: int) -> int:
    """Where a consumer begins that says so by `x-stream-offset`; QueueArgumentError. Nothing said: at the end."""
    match wanted:
        case None | "next":
            return topic.end_offset
        case "first":
            return topic.start_offset
        case "last":  # the last that was published together
            batches = await topic.read(max(topic.start_offset, topic.end_offset - 1), 1)
            return batches[0].base_offset if batches else topic.end_offset
        case bool():
            pass
        case int():
            if wanted >= 0:
                return max(topic.start_offset, min(wanted, topic.end_offset))
        case datetime():
            return await topic.offset_at(int(wanted.timestamp() * 1000))
        case str() if (ago := max_age_ms(wanted)) is not None:
            return await topic.offset_at(now_ms - ago)
    raise QueueArgumentError(
        f"invalid value {wanted!r} of x-stream-offset",
        hint="use first, last, next, an offset, a timestamp or an interval such as 7D or 1h",
    )


class StreamQueue(DurableQueue):
    """Each consumer has a subscription of its own, which is gone with it."""

    async def ensure_subscription(self) -> Subscription:
        raise QueueArgumentError(
            f"{self.said} is a stream: nothing is taken away from it",
            hint="consume it, with x-stream-offset to say where to begin",
        )

    async def consume(self, request: ConsumeRequest, *, share: ByteShare | None = None) -> LocalConsumer:
        topic = self.topic
        name = f"{_PREFIX}{request.tag or 'consumer'}-{next(_NUMBERS)}"
        try:
            await self.accepted()  # the end is behind what was confirmed before
            start = await offset_in(topic, request.stream_offset, topic.stream.now_ms)
            consumer = await self.subscribe(
                SubscribeRequest(
                    request.role,
                    name,
                    SubscriptionType.SHARED,
                    consumer_name=request.tag,
                    durable=False,
                    start=StartAt(offset=start),
                    address=request.address,
                    per_message=True,
                    filter=request.filter,
                ),
                share,
            )
        except TopicClosedError as closed:
            if self.gone:
                raise QueueNotFoundError(f"no {self.said}") from closed
            raise
        return StreamConsumer(self, topic.subscriptions[name], consumer)

    def _passing(self) -> list[Subscription]:
        return [one for one in self.topic.subscriptions.values() if one.name.startswith(_PREFIX)]

    @property
    def consumer_count(self) -> int:
        return sum(len(one.consumers) for one in self._passing())

    def counts_now(self) -> QueueCounts:
        """Ready is all that it has."""
        unacked = sum(one.unacked for one in self._passing())
        return QueueCounts(self._unsubscribed_messages(), unacked, self.consumer_count)
