"""One producer of a connection: publishes its sends and returns their receipts in order."""

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from weir.broker.api.producers import Outgoing, Producer, Receipt
from weir.gateway.pulsar.errors import FINAL, NO_TRANSACTIONS, code_of, text_of
from weir.model.batch import BatchFormat
from weir.model.errors import NotAllowedError, StreamTerminatedError, WeirError, WireError
from weir.model.topics import TopicName
from weir.runtime.adjustable_clock import clients_behind_ms
from weir.runtime.waiters import Waiters
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.fast_frames import PlainSends, Receipts
from weir.wire.pulsar.frames import NO_REQUEST, encode_command
from weir.wire.pulsar.ids import signed
from weir.wire.pulsar.message import parse_metadata, split_message

if TYPE_CHECKING:
    from weir.gateway.pulsar.session import Session

log = logging.getLogger(__name__)


#: After this many single sends, the session uses the fast path for the producer's plain sends.
_PLAIN_AFTER = 16
#: The lowest and highest sequence id from the client, and the batch.
_Send = tuple[int, int, Outgoing]


class ProducerLink:
    """One `api.Producer` with the producer id from the client."""

    def __init__(self, session: "Session", producer_id: int, name: TopicName, producer: Producer) -> None:
        self.producer_id = producer_id
        self.topic_name = name
        self.producer = producer
        #: Whether it may send; false while it waits for exclusive access.
        self.ready = False
        self._session = session
        self._receipts = Receipts(producer_id, -1 if name.partition is None else name.partition)
        #: Sends of the current receive buffer that are not published yet.
        self._sends: list[_Send] = []
        self._alone = 0  # single sends so far
        self._plain: PlainSends | None = None
        self._in_flight = 0
        self._last: asyncio.Future[Receipt] | None = None
        self._idle = Waiters()
        # After a failure the link sends no more receipts: the client would match them to the failed send.
        self._broken = False

    def send(self, command: api.CommandSend, message: memoryview) -> None:
        """Queue a send, to be published with the others of its receive buffer; raises errors that are known
        immediately."""
        if self._broken:
            return
        if not self.ready:
            raise NotAllowedError("the producer waits for exclusive access and may not send yet")
        try:
            outgoing = _outgoing(
                command, message, self._session.limits.max_batch_messages, clients_behind_ms(self._session.clock)
            )
        except WeirError as bad:
            self.publish()
            self._refuse_in_turn(command.sequence_id, bad)
            return
        self._in_flight += 1
        self._alone += 1
        if self._alone == _PLAIN_AFTER:
            self._plain = PlainSends(self.producer_id, self.producer.name)
        self._session.load.publish(len(message))
        self._session.senders[self] = None
        self._sends.append((command.sequence_id, command.highest_sequence_id, outgoing))

    def take_plain(self, view: memoryview, at: int, *, count: int, limit: int) -> tuple[int, int]:
        """Queue plain sends from position `at` of the receive buffer, as many as the session's load permits and at
        most `count`. Returns their number and the position after them."""
        if self._plain is None or self._broken or not self.ready:
            return 0, at
        load = self._session.load
        publishes, size = load.publishes_left
        sends, end = self._plain.take(view, at, count=min(count, publishes), size=size, limit=limit)
        if not sends:
            return 0, at
        taken, plain = len(sends), BatchFormat.PULSAR
        self._in_flight += taken
        load.publish(sum([len(message) for _, message in sends]), taken)
        self._session.senders[self] = None
        self._sends += [
            (sequence, 0, Outgoing(message, 1, plain, sequence, sequence)) for sequence, message in sends
        ]
        return taken, end

    def publish(self) -> None:
        """Publish the queued sends."""
        sends = self._sends
        if not sends:
            return
        self._sends = []
        if self._broken:
            self._done(len(sends), sum([len(outgoing.payload) for _, _, outgoing in sends]))
            return
        if len(sends) > 1:
            stored = self.producer.publish_all([outgoing for _, _, outgoing in sends])
            if stored is not None:
                self._last = stored
                stored.add_done_callback(partial(self._all_stored, sends))
                return
        for sequence, highest, outgoing in sends:
            self._last = self.producer.publish(outgoing)
            self._last.add_done_callback(partial(self._stored, sequence, highest, len(outgoing.payload)))

    def _refuse_in_turn(self, sequence: int, bad: WeirError) -> None:
        """Refuse a send, after the receipts of earlier sends: clients match replies to their oldest send."""
        frame = encode_command(self._send_error(sequence, bad))
        if self._in_flight and self._last is not None:
            self._last.add_done_callback(lambda _: self._session.outbox.say(frame))
        else:
            self._session.outbox.say(frame)

    def _send_error(self, sequence: int, failure: BaseException) -> api.CommandSendError:
        return api.CommandSendError(
            producer_id=self.producer_id,
            sequence_id=sequence,
            error=code_of(failure),
            message=text_of(failure),
        )

    def _done(self, count: int, size: int) -> None:
        self._session.load.published(size, count)
        self._in_flight -= count
        if not self._in_flight:
            self._idle.wake()

    def _outcome(self, sequence: int, done: "asyncio.Future[Receipt]") -> Receipt | None:
        """The receipt of a stored send; None if it failed."""
        failure = asyncio.CancelledError() if done.cancelled() else done.exception()
        if self._broken:
            return None
        if failure is not None:
            self._failed(sequence, failure)
            return None
        return done.result()

    def _all_stored(self, sends: "list[_Send]", done: "asyncio.Future[Receipt]") -> None:
        self._done(len(sends), sum([len(outgoing.payload) for _, _, outgoing in sends]))
        receipt = self._outcome(sends[0][0], done)
        if receipt is None:
            return
        frame = self._receipts.frame
        ledger, entry = receipt.position
        frames = []
        for sequence, highest, outgoing in sends:
            frames.append(frame(sequence, highest, ledger, entry))
            entry += outgoing.count
        self._session.outbox.say(b"".join(frames))

    def _stored(self, sequence: int, highest: int, size: int, done: "asyncio.Future[Receipt]") -> None:
        self._done(1, size)
        receipt = self._outcome(sequence, done)
        if receipt is None:
            return
        # A duplicate has no new position; clients recognize it by -1:-1.
        ledger, entry = (-1, -1) if receipt.duplicate else receipt.position
        self._session.outbox.say(self._receipts.frame(sequence, highest, ledger, entry))

    def _failed(self, sequence: int, failure: BaseException) -> None:
        self._broken = True
        log.info("producer %s on %s: a send failed: %s", self.producer.name, self.topic_name, failure)
        # A terminated topic closes its producers, and clients get the reason when they reconnect. The Go client
        # drops a producer after a SEND_ERROR with this code, and its pending sends then never complete.
        if isinstance(failure, FINAL) and not isinstance(failure, StreamTerminatedError):
            self._session.answer(self._send_error(sequence, failure))
            # The client may continue with new sends; those in flight come after the gap and fail.
            self._session.tasks.spawn(self._mend(), "mend")
        else:
            self._session.tasks.spawn(self.shut(), "shut")

    async def _mend(self) -> None:
        """Accept sends again when all sends in flight behind a refused one have ended."""
        await self.settled()
        self._broken = False

    async def wait_capacity(self) -> None:
        """Wait while a backlog quota, a publish rate or memory throttles the producer."""
        if not self._broken:
            with suppress(WeirError):  # `follow` reports a closed producer to the client
                await self.producer.wait_capacity()

    async def follow(self) -> None:
        """Notify the client when the broker closes the producer."""
        reason = await self.producer.closed()
        log.info("producer %s on %s is closed: %s", self.producer.name, self.topic_name, reason)
        await self.shut()

    async def shut(self) -> None:
        """Close the producer from the broker; its client reconnects it and resends what has no receipt."""
        self._broken = True
        if self._session.producers.end(self.producer_id, self):
            self._session.producers.retire(self.producer_id)
            said = api.CommandCloseProducer(producer_id=self.producer_id, request_id=NO_REQUEST)
            self._session.tell_closed(said, self.topic_name)
            await self.producer.close()

    async def close(self) -> None:
        await self.producer.close()

    async def settled(self) -> None:
        """Wait until every send has its receipt or was refused."""
        await self._idle.wait_until(lambda: not self._in_flight)


def _outgoing(command: api.CommandSend, message: memoryview, max_count: int, behind_ms: int) -> Outgoing:
    """Convert a send for the broker. `behind_ms`: how far the client's clock is behind the broker's, if known.
    The message is copied out of the receive buffer once: as a slice, a small message would pin a large buffer
    while it stays in the tail cache."""
    if command.HasField("txnid_least_bits"):
        raise NotAllowedError(NO_TRANSACTIONS)
    parts = split_message(message)
    if parts.broker_entry is not None:
        raise WireError("only brokers may add broker entry metadata")
    metadata = parse_metadata(parts)
    # Consumers count by this field (1 if it is missing); the count in the command is only informative.
    count = metadata.num_messages_in_batch
    if not 0 < count <= max_count:
        raise WireError(f"a batch claims {count} messages, the limit is {max_count}")
    sequence, highest = signed(command.sequence_id), signed(command.highest_sequence_id)
    return Outgoing(
        bytes(message),
        count,
        BatchFormat.PULSAR,
        sequence,
        highest if highest > sequence >= 0 else sequence,
        metadata.deliver_at_time + behind_ms if metadata.deliver_at_time else None,
        command.is_chunk or metadata.num_chunks_from_msg > 1,
    )
