"""A consumer of a topic with all its partitions: one queue, filled by a subscription to each of them."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from weir.client.access import ConsumerSettings, error_of
from weir.client.pulsar.connection import BrokerConnection
from weir.client.pulsar.messages import Incoming, incoming
from weir.model.errors import ConsumerClosedError, WeirError, WireError
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.commands import Type
from weir.wire.pulsar.frames import Frame, encode_command
from weir.wire.pulsar.ids import MessageId, ack_set_from_bits, id_from_wire, id_to_wire, unacknowledged
from weir.wire.pulsar.proto import Message


@dataclass(frozen=True, slots=True)
class Subscribing:
    """What a consumer asks for. `start`: where one that is not durable, and so leaves nothing behind, begins."""

    subscription: str
    type: "api.CommandSubscribe.SubType.ValueType" = api.CommandSubscribe.Exclusive
    earliest: bool = False
    durable: bool = True
    start: MessageId | None = None
    #: The same for each partition that begins elsewhere.
    starts: Mapping[int, MessageId] = field(default_factory=dict)
    create_topic: bool = True
    read_compacted: bool = False


class Inbox:
    """Messages of all partitions in the order in which they came, and the failure that ends them."""

    def __init__(self) -> None:
        self.messages: deque[Incoming] = deque()
        self.ended: set[int] = set()
        self._failure: WeirError | None = None
        self._changed = asyncio.Event()

    def put(self, message: Incoming) -> None:
        self.messages.append(message)
        self._changed.set()

    def fail(self, why: WeirError) -> None:
        if self._failure is None:
            self._failure = why
        self._changed.set()

    def mark_end(self, part: int) -> None:
        """The partition was terminated and everything in it is delivered."""
        self.ended.add(part)
        self._changed.set()

    async def get(self, at_end: Callable[[], bool]) -> Incoming | None:
        while not self.messages:
            if self._failure is not None:
                raise self._failure
            if at_end():
                return None
            self._changed.clear()
            await self._changed.wait()
        return self.messages.popleft()


class PartConsumer:
    """The subscription to one partition, with its credit and what is half acknowledged."""

    def __init__(
        self,
        connection: BrokerConnection,
        topic: str,
        asked: Subscribing,
        settings: ConsumerSettings,
        *,
        inbox: Inbox,
        part: int,
    ) -> None:
        self.topic = topic
        self._connection = connection
        self._asked = asked
        self._settings = settings
        self._inbox = inbox
        self._part = part
        self._id = connection.next_id()
        self._used = 0
        #: Batches of which some messages are acknowledged: the bits of those that are not.
        self._open_batches: dict[tuple[int, int], int] = {}
        self._opened = False
        self._gone = False

    async def open(self) -> None:
        self._connection.attach_consumer(self._id, self)
        try:
            await self._connection.ask(api.CommandSuccess, self._hello)
        except BaseException:
            self._leave()
            raise
        self._opened = True
        self._flow(self._settings.queue)

    def _hello(self, request_id: int) -> api.CommandSubscribe:
        asked = self._asked
        position = api.CommandSubscribe.Earliest if asked.earliest else api.CommandSubscribe.Latest
        hello = api.CommandSubscribe(
            topic=self.topic,
            subscription=asked.subscription,
            subType=asked.type,
            consumer_id=self._id,
            request_id=request_id,
            durable=asked.durable,
            initialPosition=position,
            force_topic_creation=asked.create_topic,
            read_compacted=asked.read_compacted,
        )
        if self._settings.name:
            hello.consumer_name = self._settings.name
        start = asked.starts.get(self._part, asked.start)
        if start is not None:
            hello.start_message_id.CopyFrom(id_to_wire(start))
        return hello

    def taken(self) -> None:
        """A message of this partition left the queue: give the broker new credit from time to time."""
        self._used += 1
        if self._used * 2 >= self._settings.queue:
            self._flow(self._used)
            self._used = 0

    async def ack(self, messages: Sequence[Incoming], *, cumulative: bool = False) -> None:
        """Acknowledge, and wait until the broker has taken note."""
        left: dict[MessageId, int] = {}
        for message in messages:
            entry = message.id._replace(batch_index=-1)
            rest = self._left_of(message, cumulative) if message.batch_size else 0
            left[entry] = left.get(entry, rest) & rest  # a message that came twice must not bring others back
        ids = []
        for entry, rest in left.items():
            ids.append(id_to_wire(entry))
            ids[-1].ack_set.extend(ack_set_from_bits(rest))
        kind = api.CommandAck.Cumulative if cumulative else api.CommandAck.Individual
        answer = await self._connection.ask(
            api.CommandAckResponse,
            lambda request_id: api.CommandAck(
                consumer_id=self._id, ack_type=kind, message_id=ids, request_id=request_id
            ),
        )
        if answer.HasField("error"):
            raise error_of(answer.error, answer.message)

    def _left_of(self, message: Incoming, cumulative: bool) -> int:
        """What is left of the message's batch, as bits; zero when all of it is done."""
        place = (message.id.ledger, message.id.entry)
        left = self._open_batches.get(place, unacknowledged(message.batch_size))
        done = 1 << message.id.batch_index
        left &= ~((done << 1) - 1 if cumulative else done)
        if left:
            self._open_batches[place] = left
        else:
            self._open_batches.pop(place, None)
        return left

    def redeliver(self, messages: list[Incoming]) -> None:
        """Give messages back; their batches come again, without what was acknowledged of them."""
        places = dict.fromkeys(message.id._replace(batch_index=-1) for message in messages)
        command = api.CommandRedeliverUnacknowledgedMessages(
            consumer_id=self._id, message_ids=[id_to_wire(at) for at in places]
        )
        self._connection.send([encode_command(command)])

    async def last_id(self) -> MessageId:
        """Where the partition's last message is; entry -1 if there is none."""
        answer = await self._connection.ask(
            api.CommandGetLastMessageIdResponse,
            lambda request_id: api.CommandGetLastMessageId(consumer_id=self._id, request_id=request_id),
        )
        return id_from_wire(answer.last_message_id)

    async def seek(self, to: MessageId | int) -> None:
        """Move the subscription to a message, or to a moment (milliseconds since 1970)."""

        def build(request_id: int) -> Message:
            command = api.CommandSeek(consumer_id=self._id, request_id=request_id)
            if isinstance(to, int):
                command.message_publish_time = to
            else:
                command.message_id.CopyFrom(id_to_wire(to))
            return command

        await self._connection.ask(api.CommandSuccess, build)

    async def unsubscribe(self) -> None:
        await self._connection.ask(
            api.CommandSuccess,
            lambda request_id: api.CommandUnsubscribe(consumer_id=self._id, request_id=request_id),
        )
        self._leave()

    async def close(self) -> None:
        if self._gone or not self._opened:
            return
        try:
            await self._connection.ask(
                api.CommandSuccess,
                lambda request_id: api.CommandCloseConsumer(consumer_id=self._id, request_id=request_id),
            )
        finally:
            self._leave()

    def _leave(self) -> None:
        self._gone = True
        self._connection.detach_consumer(self._id)

    def _flow(self, permits: int) -> None:
        self._connection.send([encode_command(api.CommandFlow(consumer_id=self._id, messagePermits=permits))])

    # --- called by the connection ---

    def on_frame(self, frame: Frame) -> None:
        if frame.type == Type.MESSAGE:
            self._delivered(cast(api.CommandMessage, frame.command), frame.message)
        elif frame.type == Type.REACHED_END_OF_TOPIC:
            self._inbox.mark_end(self._part)
        elif frame.type == Type.CLOSE_CONSUMER:
            self._leave()
            self._inbox.fail(ConsumerClosedError(f"the broker closed the consumer of {self.topic}"))

    def _delivered(self, command: api.CommandMessage, stored: memoryview | None) -> None:
        count = 0
        try:
            for message in incoming(command, stored or b"", part=self._part):
                count += 1
                if message is None:
                    self.taken()  # the broker counts it, too
                else:
                    self._inbox.put(message)
        except WireError as bad:
            at = id_from_wire(command.message_id)
            self._inbox.fail(WireError(f"message {at} of {self.topic} cannot be read: {bad.what}", hint=bad.hint))
        if not count:
            self.taken()  # nothing of it will leave the queue

    def on_lost(self, why: WeirError) -> None:
        self._gone = True
        self._inbox.fail(why)


class Consumer:
    """`receive` and `ack`; then `close`. What was not acknowledged is delivered again."""

    def __init__(self, inbox: Inbox, parts: list[PartConsumer]) -> None:
        self._inbox = inbox
        self._parts = parts

    @property
    def topics(self) -> list[str]:
        """The topic, or its partitions."""
        return [part.topic for part in self._parts]

    async def receive(self) -> Incoming | None:
        """The next message; None when the topic was terminated and there is nothing more to come."""
        message = await self._inbox.get(lambda: len(self._inbox.ended) == len(self._parts))
        if message is not None:
            self._parts[message.part].taken()
        return message

    def waiting(self) -> int:
        """Messages that `receive` would give at once."""
        return len(self._inbox.messages)

    async def ack(self, *messages: Incoming) -> None:
        """Acknowledge messages; they never come again."""
        for part, mine in self._by_part(messages):
            await part.ack(mine)

    async def ack_up_to(self, message: Incoming) -> None:
        """Acknowledge the message and everything before it in its partition."""
        await self._parts[message.part].ack([message], cumulative=True)

    def redeliver(self, *messages: Incoming) -> None:
        """Give messages back; they come again."""
        for part, mine in self._by_part(messages):
            part.redeliver(mine)

    def _by_part(self, messages: Sequence[Incoming]) -> Iterator[tuple[PartConsumer, list[Incoming]]]:
        for at, part in enumerate(self._parts):
            mine = [message for message in messages if message.part == at]
            if mine:
                yield part, mine

    async def last_ids(self) -> list[MessageId]:
        """The last message of each partition."""
        return [await part.last_id() for part in self._parts]

    async def seek(self, to: MessageId | int) -> None:
        """Move the subscription; the broker then closes this consumer, and another must be made."""
        for part in self._parts:
            await part.seek(to)

    async def unsubscribe(self) -> None:
        for part in self._parts:
            await part.unsubscribe()

    async def close(self) -> None:
        for part in self._parts:
            await part.close()
