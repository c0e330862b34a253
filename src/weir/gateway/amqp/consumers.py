"""A consumer of one channel: credit by prefetch, delivery, and failover or cancel when its queue moves or ends."""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from weir.broker.api.consumers import Delivery
from weir.broker.api.queues import ConsumeRequest, Queue, QueueConsumer
from weir.gateway.amqp.opened_messages import is_long, marked, opened, opened_in_steps
from weir.gateway.amqp.unacked import Range, Taken
from weir.model.batch import runs_of
from weir.model.errors import ConnectionLostError, ConsumerClosedError, ReadFailedError, WeirError
from weir.model.ids import Buffer
from weir.model.queues import QueueKind
from weir.runtime.tasks import UNIT_BYTES
from weir.wire.amqp.content import Deliveries, Outgoing
from weir.wire.amqp.frames import DEFAULT_FRAME_MAX
from weir.wire.amqp.methods import basic

if TYPE_CHECKING:
    from weir.gateway.amqp.channel import Channel

log = logging.getLogger(__name__)

#: Messages requested at once by a consumer without a prefetch.
_MUCH = 2_000
#: Messages that count as one unit of work.
_MESSAGES_PER_UNIT = 4
#: Limit for the properties of messages published with other protocols.
MOST_PROPERTY_BYTES = DEFAULT_FRAME_MAX - 1024


class ConsumerLink(Taken):
    """One `QueueConsumer` under a consumer tag. Call `start` after consume-ok went out."""

    def __init__(self, channel: "Channel", queue: Queue, consumer: QueueConsumer, request: ConsumeRequest) -> None:
        super().__init__(consumer)
        self.tag = request.tag
        self.queue = queue
        self.request = request
        self.is_retired = False
        self._channel = channel
        self._session = channel.session
        self._deliveries = Deliveries(channel.number, self.tag, channel.session.frame_max)
        self._name = queue.declaration.name
        self._marks = queue.rules.kind is not QueueKind.CLASSIC
        #: Offsets fetched from the queue and not yet written to the client.
        self._unsaid: deque[Range] = deque()
        self._flowing: asyncio.Future[None] | None = None
        #: The pending fetch of a no-ack consumer, which fetches only below its channel's global prefetch.
        self._asking: asyncio.Task[list[Delivery]] | None = None
        self._muted = False
        self._pushing: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._pushing = self._session.tasks.spawn(self._push(), "push")
        self._following = self._session.tasks.spawn(self._follow(), "follow")

    # --- credit ------------------------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        """How many more messages the client accepts now."""
        prefetch = self.request.prefetch
        mine = prefetch - self.unacked if prefetch and not self.request.no_ack else _MUCH
        left = self._channel.prefetch_left
        if not self.request.no_ack:
            return min(mine, left)
        # As in RabbitMQ: no-ack messages do not count for the global prefetch, but at its limit delivery stops.
        return 0 if self._channel.global_prefetch and left <= 0 else mine

    def settled(self) -> None:
        if self._flowing is not None and not self._flowing.done() and self.credit > 0:
            self._flowing.set_result(None)
        if self.is_retired and not self.unacked:
            self._channel.retired.pop(self, None)
            self._session.tasks.spawn(self.close(), "close")

    async def _has_credit(self) -> int:
        while (credit := self.credit) <= 0:
            self._flowing = asyncio.get_running_loop().create_future()
            await self._flowing
        return credit

    # --- delivery ----------------------------------------------------------------------------------------

    async def _push(self) -> None:
        """Fetch messages and write them, as fast as the client reads them."""
        outbox, turns = self._session.outbox, self._session.turns
        try:
            while not self._muted:
                deliveries = await self._next()
                size = sum(len(delivery.batch.payload) for delivery in deliveries)
                count = len(deliveries)
                self._unsaid = deque(run for delivery in deliveries for run in _ranges(delivery))
                try:
                    for delivery in deliveries:
                        await self._say(delivery, await self._messages(delivery))
                    deliveries.clear()  # not while it waits for a client that does not read
                    outbox.flush()
                    if not outbox.is_clear:
                        await outbox.drain()
                finally:
                    self._session.delivery_share.release(size)
                if turns.spend(1 + count + size // UNIT_BYTES):
                    await turns.next()
        except (ConsumerClosedError, ConnectionLostError):
            pass  # `_follow` or the session's receive loop handles it
        except ReadFailedError as failed:
            self._channel.fail(failed)  # a cancellation could not say why
        except WeirError as failed:
            log.warning("consumer of queue %r cancelled: %s", self._name, failed)
            await self._cancelled()

    async def _next(self) -> list[Delivery]:
        """Fetch messages within the credit. A no-ack consumer fetches none while its channel is at its global
        prefetch, so that consumers of other channels receive them."""
        while True:
            credit = await self._has_credit()
            if not (self.request.no_ack and self._channel.global_prefetch):
                return await self.consumer.next(credit)
            asking = self._asking = asyncio.get_running_loop().create_task(self.consumer.next(credit))
            try:
                await asyncio.wait([asking])
            finally:
                self._asking = None
                asking.cancel()
            if not asking.cancelled():
                return asking.result()

    def hold_back(self) -> None:
        """Cancel a pending fetch because the channel has reached its global prefetch."""
        if self._asking is not None:
            self._asking.cancel()

    async def _messages(self, delivery: Delivery) -> list[Outgoing]:
        """Decode the whole batch: one message per offset."""
        batch, kept = delivery.batch, self._session.services.decoded
        found = kept.find(batch)
        if found is None:
            if is_long(batch):
                steps = opened_in_steps(batch, self._name, MOST_PROPERTY_BYTES)
                found = await self._session.turns.through(steps)
            else:
                found = opened(batch, self._name, MOST_PROPERTY_BYTES)
            if delivery.wanted is not None:
                kept.keep(batch, found)
        return found

    async def _say(self, delivery: Delivery, messages: list[Outgoing]) -> None:
        channel, base = self._channel, delivery.batch.base_offset
        for first, end in _ranges(delivery):
            at = first
            while at < end:
                left = min(end - at, self.credit) if self.request.no_ack else channel.prefetch_left
                if left <= 0:
                    # Other consumers of the channel used the credit: the rest waits here for new credit.
                    await self._has_credit()
                    continue
                upto = min(end, at + left)
                self._say_run(delivery, messages, at, upto, base)
                at = upto

    def _say_run(self, delivery: Delivery, messages: list[Outgoing], first: int, end: int, base: int) -> None:
        """Write the messages [first, end) in one call."""
        if self._muted:
            return
        channel, frames = self._channel, self._deliveries.frames
        again = delivery.redelivered > 0
        unacked = channel.unacked
        buffers: list[Buffer] = []
        for offset in range(first, end):
            message = messages[offset - base]
            if self._marks:
                message = marked(message, self.queue.rules.kind, offset, delivery.redelivered)
            tag = unacked.next_tag() if self.request.no_ack else unacked.add(self, offset)
            buffers += frames(tag, again, message)
        self._was_said(end)
        count = end - first
        if self.request.no_ack:
            self.consumer.ack([(first, end)])
        else:
            self.unacked += count
            channel.delivers(count)
        channel.delivered += count
        if again:
            channel.redelivered += count
        self._session.services.metrics.delivered += count
        self._session.turns.spend(count // _MESSAGES_PER_UNIT)
        self._session.outbox.say_all(buffers)

    def _was_said(self, end: int) -> None:
        unsaid = self._unsaid
        if unsaid:
            _, last = unsaid.popleft()
            if end < last:
                unsaid.appendleft((end, last))

    # --- the end -----------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Wait until the broker closes the consumer, then consume again from the queue at its new owner. If the
        queue no longer exists, send basic.cancel to the client."""
        reason = await self.consumer.closed()
        log.info("consumer of queue %r closed: %s", self._name, reason)
        self.over = True
        await self._stop_pushing()
        if self.is_retired or self._channel.consumers.get(self.tag) is not self:
            return
        try:
            again = await self._channel.session.consume(self._channel, self._name, self.request)
        except WeirError as gone:
            log.info("consumer of queue %r cancelled: %s", self._name, gone)
            await self._cancelled()
            return
        if self._channel.consumers.get(self.tag) is not self:  # the client cancelled it meanwhile
            await again.close()
            return
        self._channel.consumers[self.tag] = again
        again.start()

    async def _cancelled(self) -> None:
        """Close the consumer and send basic.cancel, if the client supports consumer_cancel_notify."""
        channel = self._channel
        if channel.consumers.get(self.tag) is not self:
            return
        del channel.consumers[self.tag]
        self._session.services.metrics.consumers -= 1
        if self._session.capable("consumer_cancel_notify"):
            channel.say(basic.Cancel(self.tag, True))
        await self.close()

    def retire(self) -> None:
        """Stop delivery because the client cancelled; its unacknowledged messages stay with it until settled."""
        self.stop()
        self.is_retired = True
        self._session.services.metrics.consumers -= 1
        if self.over:
            return
        self.consumer.retire()
        if self.unacked:
            self._channel.retired[self] = None
        else:
            self._session.tasks.spawn(self.close(), "close")

    def stop(self) -> None:
        """Stop the push task, and requeue messages not yet written at their original positions."""
        if self._pushing is not None and self._pushing is not asyncio.current_task():
            self._pushing.cancel()
        self.mute()

    def mute(self) -> None:
        """Stop writing, and requeue messages not yet written at their original positions. The caller must call
        `close` next, which ends the tasks."""
        self._muted = True
        unsaid, self._unsaid = self._unsaid, deque()
        if unsaid and not self.over:
            self.consumer.requeue(list(unsaid))

    async def _stop_pushing(self) -> None:
        pushing = self._pushing
        if pushing is not None and not pushing.done():
            pushing.cancel()
            await asyncio.wait([pushing])

    async def close(self) -> None:
        """Close the consumer, which requeues its unsettled messages."""
        self.stop()
        if self._following is not None and self._following is not asyncio.current_task():
            self._following.cancel()
        self.over = True
        await self.consumer.close()


def _ranges(delivery: Delivery) -> list[Range]:
    batch = delivery.batch
    if delivery.wanted is None:
        return [(batch.base_offset, batch.end_offset)]
    return runs_of(delivery.wanted, batch.base_offset)
