"""One consumer of a connection: delivers messages within the client's permits, and tracks unacknowledged batches.

It sends Pulsar batches as stored, and translates batches of other protocols on delivery.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from weir.broker.api.consumers import Consumer, Delivery, SubscriptionType
from weir.broker.api.topics import Topic
from weir.gateway.pulsar.acknowledgments import Acking, Unacked
from weir.gateway.pulsar.errors import EntryPosition, code_of, text_of
from weir.model.batch import Batch, BatchFormat
from weir.model.check import STEP_MESSAGES
from weir.model.errors import (
    ConnectionLostError,
    ConsumerClosedError,
    ReadStuckError,
    WeirError,
)
from weir.model.ids import Buffer
from weir.runtime.tasks import UNIT_BYTES
from weir.wire.formats.table import PulsarEntry, pulsar_entry, pulsar_entry_in_steps
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import Part, cut_entry
from weir.wire.pulsar.fast_frames import BrokerEntries, Deliveries
from weir.wire.pulsar.frames import NO_REQUEST
from weir.wire.pulsar.ids import unacknowledged

if TYPE_CHECKING:
    from weir.gateway.pulsar.session import Session

#: Half the cost of calling the class, which matters once per entry.
_new = tuple.__new__


def translate(batch: Batch) -> PulsarEntry:
    """The bytes that follow a CommandMessage, from the magic on, and the number of messages for the client."""
    if batch.format is BatchFormat.PULSAR:
        return _new(PulsarEntry, (batch.payload, batch.count))
    return pulsar_entry(batch)


def cut(entry: PulsarEntry, batch: Batch, wanted: int, *, separate: bool) -> list[Part] | None:
    """Split a batch into entries of its wanted messages: runs of neighbors, or single messages if `separate`.
    None if it cannot be split."""
    if entry.messages != batch.count:  # one message that replaces a batch that cannot be decoded
        return None
    return cut_entry(entry.payload, batch.count, wanted, separate=separate)


def is_long(batch: Batch) -> bool:
    """Whether the translation of the batch must yield to other connections."""
    return batch.format is not BatchFormat.PULSAR and batch.count > STEP_MESSAGES


translate_in_steps = pulsar_entry_in_steps

log = logging.getLogger(__name__)

_MAX_CREDIT = 2**31 - 1
#: Work of translation between two yields, in bytes, and the cost of one message in the same unit.
_TURN_WORK_BYTES = 1024 * 1024
_MESSAGE_WORK_BYTES = 1024
#: Deliveries per unit of work.
_DELIVERIES_PER_UNIT = 2


class ConsumerLink:
    """One `api.Consumer` with the consumer id from the client. Call `start` after the response to SUBSCRIBE."""

    def __init__(
        self,
        session: "Session",
        consumer_id: int,
        topic: Topic,
        consumer: Consumer,
        *,
        kind: SubscriptionType,
        epoch: int | None = None,
    ) -> None:
        self.consumer_id = consumer_id
        self.topic = topic
        self.consumer = consumer
        self.kind = kind
        #: The client's consumer epoch; the client drops messages of older epochs.
        self.epoch = epoch
        #: Set while the client unsubscribes, so that the broker sends no CLOSE_CONSUMER.
        self.ending = False
        #: Set when the broker has closed it.
        self.over = False
        self.credit = 0
        self.unacked = Unacked()
        #: Whether it gets all messages, in the order of the log.
        self.alone = kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
        self.acking = Acking(session, consumer_id, topic, consumer, self.unacked, in_order=self.alone)
        self.connected_ms = session.clock.wall_ms()
        self.messages_out = 0
        self.bytes_out = 0
        partition = topic.name.partition
        self._session = session
        self._broker_entries = BrokerEntries()
        self._deliveries = Deliveries(consumer_id, -1 if partition is None else partition)
        self._with_broker_entry = session.features.supports_broker_entry_metadata
        self._told_the_end = False
        self._flowing: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        spawn = self._session.tasks.spawn
        self._tasks = [spawn(self._push(), "push"), spawn(self._follow(), "follow")]
        if self.kind is SubscriptionType.FAILOVER:
            self._tasks.append(spawn(self._follow_activity(), "activity"))

    # --- messages out ------------------------------------------------------------------------------------

    def flow(self, permits: int) -> None:
        """Add permits from the client."""
        self.credit = min(self.credit + permits, _MAX_CREDIT)
        if self._flowing is not None and self.credit > 0 and not self._flowing.done():
            self._flowing.set_result(None)

    async def _push(self) -> None:
        """Pull messages with `next` and write them as fast as the client reads."""
        outbox, consumer, turns = self._session.outbox, self.consumer, self._session.turns
        try:
            while True:
                while self.credit <= 0:
                    self._flowing = asyncio.get_running_loop().create_future()
                    await self._flowing
                try:
                    deliveries = await consumer.next(self.credit)
                except ReadStuckError as stuck:  # the client logs the error and keeps waiting
                    self._session.answer(
                        api.CommandError(request_id=NO_REQUEST, error=code_of(stuck), message=text_of(stuck))
                    )
                    continue
                size = sum(len(delivery.batch.payload) for delivery in deliveries)
                units = 1 + len(deliveries) // _DELIVERIES_PER_UNIT + size // UNIT_BYTES
                try:
                    while True:
                        first: PulsarEntry | None = None
                        if is_long(deliveries[0].batch):
                            first = await turns.through(translate_in_steps(deliveries[0].batch))
                        done = self._say(deliveries, first)
                        del first
                        if done == len(deliveries):
                            break
                        del deliveries[:done]
                        await outbox.drain()  # decompressed batches may be large
                        await turns.next()  # yield between translations
                    del deliveries  # do not hold them while waiting for a slow client
                    await outbox.drain()
                finally:
                    self._session.delivery_share.release(size)
                if turns.spend(units):  # with cached messages and a fast client, the loop would never wait
                    await turns.next()
        except (ConsumerClosedError, ConnectionLostError):
            pass  # `_follow` or the receive loop handles it
        except WeirError as failed:
            log.warning("consumer %s of %s is closed: %s", self.consumer.name, self.topic.name, failed)
            await self.shut()

    def _say(self, deliveries: list[Delivery], first: PulsarEntry | None) -> int:
        """Send deliveries up to the work limit of one turn, and return their number. `first`: the translation of
        the first one, if it is done already."""
        buffers: list[Buffer] = []
        places = self._places(deliveries)
        said = work = 0
        for delivery in deliveries:
            batch = delivery.batch
            if said and is_long(batch):
                break
            said += 1
            base = batch.base_offset
            place = places(base)
            if place[0] < 0:  # trimmed away meanwhile
                self.consumer.ack([(base, batch.end_offset)])
                continue
            payload, messages = said_entry = translate(batch) if first is None else first
            first = None
            wanted = delivery.wanted
            parts = self._parts(said_entry, delivery) if self.consumer.gets_parts else None
            if parts is None:
                # One message that replaces an undecodable batch is not a batch for the client.
                hidden = (wanted or 0) if messages == batch.count else 0
                buffers += (self._head(delivery, place, len(payload), base + batch.count - 1, hidden), payload)
                self.unacked.delivered(place, base, batch.count, wanted)
            else:
                messages = 0
                for part in parts:  # for the client each part is a batch with the id of its first message
                    place, end = places(base + part.first), base + part.first + part.messages
                    buffers += (self._head(delivery, place, len(part.payload), end - 1), part.payload)
                    self.unacked.delivered(place, base + part.first, part.messages, None)
                    messages += part.messages
            # Clients count every message of a batch, including those hidden by an ack set.
            self.credit -= messages
            self.messages_out += batch.count
            self.bytes_out += len(payload)
            if payload is not batch.payload or parts is not None:
                work += batch.count * _MESSAGE_WORK_BYTES + len(payload)
                if work > _TURN_WORK_BYTES:
                    break
        self._session.outbox.say_all(buffers)
        return said

    def _parts(self, entry: PulsarEntry, delivery: Delivery) -> list[Part] | None:
        """The entries into which a batch is split; None to send the batch unchanged.

        A negative acknowledgment of one message names its whole entry, so all of its messages count as failed. In
        a redelivery each message is a separate entry: only the messages that fail again count again.
        """
        batch, wanted = delivery.batch, delivery.wanted
        separate = delivery.redelivered > 0 and batch.count > 1 and not self.alone
        if wanted is None:
            if not separate:
                return None
            wanted = unacknowledged(batch.count)
        # A client that acknowledged part of a batch supports ack sets, and its remaining messages keep their ids.
        return cut(entry, batch, wanted, separate=separate)

    def _head(self, delivery: Delivery, place: EntryPosition, size: int, last: int, wanted: int = 0) -> bytes:
        """The frame head of a message of `size` bytes; `last`: the offset of its last message; `wanted`: the bits
        of an ack set if only part of the batch is wanted."""
        broker_entry = b""
        if self._with_broker_entry:
            broker_entry = self._broker_entries.head(delivery.batch.append_ms, last)
            size += len(broker_entry)
        if not wanted and not delivery.redelivered and self.epoch is None:
            return self._deliveries.head(*place, size) + broker_entry
        return (
            self._deliveries.again(
                *place,
                size,
                redelivery_count=delivery.redelivered,
                unacknowledged=wanted,
                consumer_epoch=self.epoch,
            )
            + broker_entry
        )

    def _places(self, deliveries: list[Delivery]) -> Callable[[int], EntryPosition]:
        """Maps offsets to ledger positions, by arithmetic if the first and the last are in the same ledger."""
        place_of = self.topic.position_of
        if len(deliveries) < 3:
            return place_of
        offsets = [delivery.batch.base_offset for delivery in deliveries]
        low, high = min(offsets), max(offsets)
        ledger, entry = place_of(low)
        if ledger < 0 or place_of(high) != (ledger, entry + high - low):
            return place_of
        return lambda offset: (ledger, entry + offset - low)

    async def _follow_activity(self) -> None:
        """Notify a failover consumer when it becomes active or inactive."""
        active = self.consumer.active
        try:
            while True:
                self._session.answer(
                    api.CommandActiveConsumerChange(consumer_id=self.consumer_id, is_active=active)
                )
                active = await self.consumer.active_change(active)
        except ConsumerClosedError:
            pass

    def tell_the_end(self) -> None:
        """Notify the client, once, that it has received all messages of a terminated topic."""
        if not self._told_the_end and self.topic.terminated and not self.consumer.backlog:
            self._told_the_end = True
            self._session.answer(api.CommandReachedEndOfTopic(consumer_id=self.consumer_id))

    # --- the end -----------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Notify the client when the broker closes the consumer."""
        reason = await self.consumer.closed()
        self.over = True
        log.info("consumer %s of %s is closed: %s", self.consumer.name, self.topic.name, reason)
        await self.shut()

    async def shut(self) -> None:
        """Close the consumer from the broker; its client reconnects it."""
        if not self.ending and self._session.consumers.end(self.consumer_id, self):
            self._session.consumers.retire(self.consumer_id, self.consumer.denied)
            said = api.CommandCloseConsumer(consumer_id=self.consumer_id, request_id=NO_REQUEST)
            self._session.tell_closed(said, self.topic.name)
            await self.close()

    async def close(self, *, lost: bool = False) -> None:
        """Stop and leave the subscription, which redelivers unacknowledged messages to other consumers. `lost`:
        the connection broke without CLOSE_CONSUMER."""
        self.stop()
        await self.consumer.close(failed=lost)

    def stop(self) -> None:
        """Stop delivering."""
        this = asyncio.current_task()
        for task in self._tasks:
            if task is not this:
                task.cancel()
