"""A consumer group at one partition: what was received there, and until when each message is invisible."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from weir.broker.api import Consumer, Delivery, Topic
from weir.model.bits import indices_of
from weir.model.errors import ConsumerClosedError
from weir.model.message import Message
from weir.wire.formats import messages_of
from weir.wire.rocketmq.handles import ReceiptHandle

if TYPE_CHECKING:
    from weir.gateway.rocketmq.consume.deadlines import Deadlines

#: What a handle has room for.
_MAX_DELIVERY = 2**32 - 1


class Received(NamedTuple):
    """A message on its way to a consumer."""

    message: Message
    partition: int
    offset: int
    #: How often it was delivered, with this time.
    attempt: int
    stored_ms: int
    handle: ReceiptHandle


class Pending:
    """A message that somebody has. `client`: who holds it for as long as it lives; "" of one that has its time."""

    __slots__ = ("attempt", "client", "delivery", "due_ms")

    def __init__(self, delivery: int, attempt: int, due_ms: int, client: str) -> None:
        self.delivery = delivery
        self.attempt = attempt
        self.due_ms = due_ms
        self.client = client


class Link:
    """`spare`: what came and nobody wanted any more; it is handed out first."""

    def __init__(
        self,
        partition: int,
        topic: Topic,
        consumer: Consumer,
        deadlines: "Deadlines",
        lives: Callable[[str], bool],
    ) -> None:
        """`lives`: whether a client is connected to this broker. One that is not (another broker received for it)
        has a time like others', and then as long as it lives, if it has come here meanwhile."""
        self.partition = partition
        self.topic = topic
        self.consumer = consumer
        self.pending: dict[int, Pending] = {}
        self.spare: list[Delivery] = []
        self._deadlines = deadlines
        self._lives = lives
        #: Begins elsewhere in each life of a link: a handle of an earlier one is nobody's.
        self._deliveries = deadlines.now_ms() & _MAX_DELIVERY

    @property
    def alive(self) -> bool:
        return self.topic.alive

    def take(self, credit: int) -> list[Delivery]:
        """What is at hand."""
        return self.take_spare() if self.spare else self.consumer.take(credit)

    def take_spare(self) -> list[Delivery]:
        spare, self.spare = self.spare, []
        return spare

    def hand_out(self, deliveries: Sequence[Delivery], invisible_ms: int, client: str) -> list[Received]:
        """Messages become somebody's: invisible for so long, or while the client lives."""
        found: list[Received] = []
        due_ms = self._deadlines.now_ms() + invisible_ms
        for delivery in deliveries:
            batch = delivery.batch
            messages = messages_of(batch)
            attempt = delivery.redelivered + 1
            for index in range(batch.count) if delivery.wanted is None else indices_of(delivery.wanted):
                offset = batch.base_offset + index
                message = messages[index] if len(messages) == batch.count else messages[0]
                handle = self._hold(offset, attempt, due_ms, client)
                found.append(Received(message, self.partition, offset, attempt, batch.append_ms, handle))
        return found

    def _hold(self, offset: int, attempt: int, due_ms: int, client: str) -> ReceiptHandle:
        self._deliveries = self._deliveries + 1 & _MAX_DELIVERY
        self.pending[offset] = Pending(self._deliveries, attempt, due_ms, client)
        if not client or not self._lives(client):
            self._deadlines.add(due_ms, self, offset, self._deliveries)
        return ReceiptHandle(self.partition, offset, due_ms, self._deliveries)

    def has(self, handle: ReceiptHandle) -> Pending | None:
        """What the handle is about, if that delivery is still somebody's."""
        found = self.pending.get(handle.offset)
        if found is None or (found.delivery, found.due_ms) != (handle.delivery, handle.visible_ms):
            return None
        return found

    def ack(self, offset: int) -> None:
        self.pending.pop(offset, None)
        self.consumer.ack([(offset, offset + 1)])

    def reject(self, offset: int) -> None:
        """It is a dead letter."""
        self.pending.pop(offset, None)
        self.consumer.reject([(offset, offset + 1)])

    def prolong(self, handle: ReceiptHandle, pending: Pending, invisible_ms: int) -> ReceiptHandle:
        """From now on; the old handle holds no more."""
        return self._hold(handle.offset, pending.attempt, self._deadlines.now_ms() + invisible_ms, "")

    def reappear(self, offset: int) -> None:
        """It is visible again; where the queue is elsewhere now, it is so already."""
        if self.pending.pop(offset, None) is not None:
            with suppress(ConsumerClosedError):
                self.consumer.redeliver([(offset, offset + 1)], delay_ms=0)

    def expire(self, offset: int, delivery: int) -> bool:
        """Its time is over, unless it was settled or prolonged; whether it was."""
        found = self.pending.get(offset)
        if found is None or found.delivery != delivery:
            return False
        if found.client and self._lives(found.client):
            return False
        self.reappear(offset)
        return True

    def free(self, client: str) -> None:
        """The client is gone: what it held for as long as it lived is visible again."""
        for offset in [offset for offset, held in self.pending.items() if held.client == client]:
            self.reappear(offset)

    async def close(self) -> None:
        self.pending.clear()
        self.spare.clear()
        await self.consumer.close()
