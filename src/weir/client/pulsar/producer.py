"""A producer of one topic, or of one partition of it."""

import asyncio
from collections import deque
from typing import cast

from weir.client.access import ProducerSettings, error_of
from weir.client.pulsar.connection import BrokerConnection
from weir.client.pulsar.messages import Outgoing
from weir.model.errors import MessageTooLargeError, ProducerClosedError, WeirError
from weir.model.ids import Buffer
from weir.runtime.interfaces import Clock
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import encode_batch
from weir.wire.pulsar.commands import Type
from weir.wire.pulsar.frames import Frame, encode_with_message
from weir.wire.pulsar.ids import MessageId, id_from_wire
from weir.wire.pulsar.message import seal_message

#: What a message costs in a batch besides payload and properties, roughly.
_OVERHEAD_BYTES = 64

Receipt = asyncio.Future[MessageId]


class TopicProducer:
    """Messages that are sent within one turn of the loop go out as one batch. Receipts come in order."""

    def __init__(self, clock: Clock, connection: BrokerConnection, topic: str, settings: ProducerSettings) -> None:
        self.topic = topic
        self.name = ""
        self._clock = clock
        self._connection = connection
        self._settings = settings
        self._id = connection.next_id()
        self._sequence = -1
        self._queued: list[tuple[int, Outgoing, Receipt]] = []
        self._queued_bytes = 0
        #: Sent entries without a receipt: the first sequence of each, and who waits.
        self._sent: deque[tuple[int, list[Receipt]]] = deque()
        self._pending = 0
        self._flush_due = False
        self._may_send = asyncio.Event()
        self._may_send.set()
        self._gone: WeirError | None = None

    async def open(self) -> None:
        """Make it known to the broker, which names it and says how far its name has come."""
        self._connection.attach_producer(self._id, self)
        try:
            found = await self._connection.ask(api.CommandProducerSuccess, self._hello)
        except BaseException as failure:
            self._connection.detach_producer(self._id)
            self._gone = failure if isinstance(failure, WeirError) else ProducerClosedError("never opened")
            raise
        self.name = found.producer_name
        self._sequence = found.last_sequence_id

    def _hello(self, request_id: int) -> api.CommandProducer:
        hello = api.CommandProducer(topic=self.topic, producer_id=self._id, request_id=request_id)
        hello.user_provided_producer_name = self._settings.name is not None
        if self._settings.name is not None:
            hello.producer_name = self._settings.name
        return hello

    def send(self, message: Outgoing) -> Receipt:
        """Queue a message; the future is done when the broker has stored it. Never waits: see `wait_capacity`."""
        receipt: Receipt = asyncio.get_running_loop().create_future()
        size = len(message.payload) + _OVERHEAD_BYTES
        most = self._connection.max_message_bytes
        if self._gone is not None:
            receipt.set_exception(ProducerClosedError(f"the producer of {self.topic} is gone: {self._gone.what}"))
            return receipt
        if most and len(message.payload) > most:
            receipt.set_exception(
                MessageTooLargeError(f"a message of {len(message.payload)} bytes; the broker takes {most} at most")
            )
            return receipt
        if self._queued and self._queued_bytes + size > self._settings.batch_bytes:
            self._flush()
        self._sequence += 1
        self._queued.append((self._sequence, message, receipt))
        self._queued_bytes += size
        self._count(1)
        if len(self._queued) >= self._settings.batch_messages:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush_later)
        return receipt

    async def wait_capacity(self) -> None:
        """Wait until another message may be sent: few are under way, and the connection takes bytes."""
        await self._may_send.wait()
        if self._gone is None:
            await self._connection.drain()

    async def close(self) -> None:
        """Tell the broker. What has no receipt yet may or may not be stored."""
        if self._gone is None:
            self._flush()
            try:
                await self._connection.ask(
                    api.CommandSuccess,
                    lambda request_id: api.CommandCloseProducer(producer_id=self._id, request_id=request_id),
                )
            finally:
                self._connection.detach_producer(self._id)
                self.on_lost(ProducerClosedError("closed"))

    # --- sending ---

    def _flush_later(self) -> None:
        self._flush_due = False
        self._flush()

    def _flush(self) -> None:
        queued, self._queued, self._queued_bytes = self._queued, [], 0
        run: list[tuple[int, Outgoing, Receipt]] = []
        for item in queued:
            if item[1].deliver_at_ms is None:
                run.append(item)
                continue
            # A delayed message stands alone: a batch has one moment for all of it.
            self._send_run(run)
            self._send_run([item])
            run = []
        self._send_run(run)

    def _send_run(self, run: list[tuple[int, Outgoing, Receipt]]) -> None:
        if not run:
            return
        first, message, _ = run[0]
        metadata = message.whole(self.name, first, self._clock.wall_ms())
        payload = message.payload
        if len(run) > 1:
            payload = encode_batch((item.single(sequence), item.payload) for sequence, item, _ in run)
            metadata.num_messages_in_batch = len(run)
            metadata.highest_sequence_id = run[-1][0]
            metadata.uncompressed_size = len(payload)
            metadata.ClearField("properties")  # each message of the batch has its own
        command = api.CommandSend(producer_id=self._id, sequence_id=first, num_messages=len(run))
        if len(run) > 1:
            command.highest_sequence_id = run[-1][0]
        self._sent.append((first, [receipt for _, _, receipt in run]))
        frame: list[Buffer] = encode_with_message(command, seal_message(metadata, payload))
        self._connection.send(frame)

    def _count(self, change: int) -> None:
        self._pending += change
        if self._pending >= self._settings.max_pending:
            self._may_send.clear()
        else:
            self._may_send.set()

    # --- called by the connection ---

    def on_frame(self, frame: Frame) -> None:
        if frame.type == Type.SEND_RECEIPT:
            self._stored(cast(api.CommandSendReceipt, frame.command))
        elif frame.type == Type.SEND_ERROR:
            refused = cast(api.CommandSendError, frame.command)
            self._refused(refused.sequence_id, error_of(refused.error, refused.message))
        else:
            self._connection.detach_producer(self._id)
            self.on_lost(ProducerClosedError(f"the broker closed the producer of {self.topic}"))

    def _stored(self, command: api.CommandSendReceipt) -> None:
        if not self._sent or self._sent[0][0] != command.sequence_id:
            return  # of something that was given up before
        _, receipts = self._sent.popleft()
        at = id_from_wire(command.message_id)
        for index, receipt in enumerate(receipts):
            if not receipt.done():
                receipt.set_result(at._replace(batch_index=index) if len(receipts) > 1 else at)
        self._count(-len(receipts))

    def _refused(self, sequence: int, error: WeirError) -> None:
        for at, (first, receipts) in enumerate(self._sent):
            if first == sequence:
                del self._sent[at]
                _fail(receipts, error)
                self._count(-len(receipts))
                return

    def on_lost(self, why: WeirError) -> None:
        self._gone = why
        sent, self._sent = self._sent, deque()
        queued, self._queued = self._queued, []
        for _, receipts in sent:
            _fail(receipts, why)
        _fail([receipt for _, _, receipt in queued], why)
        self._pending = 0
        self._may_send.set()


def _fail(receipts: list[Receipt], error: WeirError) -> None:
    for receipt in receipts:
        if not receipt.done():
            receipt.set_exception(error)
            receipt.exception()  # a caller who does not look is told by the next call
