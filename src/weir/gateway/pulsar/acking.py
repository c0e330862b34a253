"""Acknowledgements of one consumer: message ids in, offsets to the broker, answers where they are asked for."""

import asyncio
import logging
from typing import TYPE_CHECKING

from weir.broker.api import Consumer, Topic
from weir.gateway.pulsar.errors import NO_TRANSACTIONS, code_of, text_of
from weir.gateway.pulsar.unacked import EntryPosition, Range, Unacked, joined, ranges_of
from weir.gateway.pulsar.values import place_of
from weir.model.batch import Batch
from weir.model.errors import NotAllowedError, OffsetTrimmedError, TooManyError, WeirError
from weir.runtime.turns import UNIT_ELEMENTS, Work
from weir.wire.pulsar.hot import ack_response
from weir.wire.pulsar.ids import bits_from_ack_set, unacknowledged
from weir.wire.pulsar.proto import api

if TYPE_CHECKING:
    from weir.gateway.pulsar.session import Session

log = logging.getLogger(__name__)

#: What is acknowledged that this connection never delivered must be looked up; so many at a time.
_MAX_LOOK_UPS = 1000
#: So many ids without ack sets are acknowledged at once, more in turns.
_FEW = 16
#: Ids, words of ack sets, or ranges of offsets between two looks at whether the turn is over.
_AT_A_TIME = 512


class Acking:
    """Translates what a client acknowledges, and answers it once it is safe."""

    def __init__(
        self,
        session: "Session",
        consumer_id: int,
        topic: Topic,
        consumer: Consumer,
        unacked: Unacked,
        *,
        in_order: bool,
    ) -> None:
        """`in_order`: whether it is alone, so that neighbours are acknowledged as one range; shared subscriptions
        count batch by batch."""
        self._session = session
        self._consumer_id = consumer_id
        self._topic = topic
        self._consumer = consumer
        self._unacked = unacked
        self._in_order = in_order
        self._to_answer: list[int] = []
        self._answering: asyncio.Task[None] | None = None
        self._looking: dict[asyncio.Task[None], None] = {}
        #: Why an acknowledgement since the last answer did not get through, if one did not.
        self._lost: WeirError | None = None

    def take(self, command: api.CommandAck) -> Work | None:
        """Acknowledge; raises what can be told at once. What names much is work to be done in turns."""
        if command.HasField("txnid_most_bits") or command.HasField("txnid_least_bits"):
            raise NotAllowedError(NO_TRANSACTIONS)
        ids = command.message_id
        if command.ack_type == api.CommandAck.Cumulative and len(ids) != 1:
            raise NotAllowedError("a cumulative acknowledgement names one message")
        work = self._work(command)
        if len(ids) > _FEW or any(at.ack_set for at in ids):
            return work
        for _ in work:
            pass
        return None

    def _work(self, command: api.CommandAck) -> Work:
        if command.ack_type == api.CommandAck.Cumulative:
            yield from self._cumulative(command.message_id[0])
        else:
            yield from self._individual(command)
        if command.HasField("request_id"):
            self._answer(command.request_id)

    def _individual(self, command: api.CommandAck) -> Work:
        ranges: list[Range] = []
        named = 0
        for at in command.message_id:
            words = at.ack_set
            named += 1 + len(words)
            unacked = bits_from_ack_set(words) if words else 0
            found = self._unacked.ack((at.ledgerId, at.entryId), unacked)
            if found is None:
                self._look_up(place_of(at), unacked, cumulative=False)
            else:
                ranges += found
            if named >= _AT_A_TIME or len(ranges) >= _AT_A_TIME:
                yield from self._ack(ranges)
                yield named // UNIT_ELEMENTS
                ranges, named = [], 0
        yield from self._ack(ranges)

    def _ack(self, ranges: list[Range]) -> Work:
        if self._in_order:
            ranges = joined(ranges)
        for start in range(0, len(ranges), _AT_A_TIME):
            some = ranges[start : start + _AT_A_TIME]
            self._consumer.ack(some)
            yield -(-len(some) // UNIT_ELEMENTS)

    def _cumulative(self, at: api.MessageIdData) -> Work:
        ledger, entry = place = place_of(at)
        unacked = bits_from_ack_set(at.ack_set) if at.ack_set else 0
        batch = self._unacked.get(place)
        if batch is not None:
            if unacked & unacknowledged(batch.size):
                self._up_to(batch.base - 1)
                yield from self._ack(self._unacked.ack(place, unacked) or [])
            else:
                self._up_to(batch.base + batch.size - 1)
            return
        # Half-way through a batch, clients acknowledge the entry before it: the offset before its first.
        following = self._unacked.get((ledger, entry + 1))
        if following is not None:
            self._up_to(following.base - 1)
        else:
            self._look_up(place, unacked, cumulative=True)

    def _up_to(self, offset: int) -> None:
        self._consumer.ack_up_to(offset)
        self._unacked.ack_before(offset + 1)

    # --- what this connection did not deliver ------------------------------------------------------------

    def _look_up(self, place: EntryPosition, unacked: int, *, cumulative: bool) -> None:
        """Delivered before the client connected anew, say: which messages the id stands for is in the log."""
        offset = self._topic.offset_of(*place)
        if self._topic.position_of(offset) != place or offset >= self._topic.end_offset:
            return  # trimmed away, or nothing that was ever sent
        if len(self._looking) >= _MAX_LOOK_UPS:
            # It is delivered again, which is what its client must expect after a break.
            self._lost = TooManyError(f"{_MAX_LOOK_UPS} acknowledgements of earlier deliveries are under way")
            return
        looking = self._session.tasks.spawn(self._ack_unknown(offset, unacked, cumulative), "ack")
        self._looking[looking] = None
        looking.add_done_callback(lambda done: self._looking.pop(done, None))

    async def _ack_unknown(self, offset: int, unacked: int, cumulative: bool) -> None:
        try:
            for batch in await self._topic.read(offset, 1):
                if batch.base_offset <= offset < batch.end_offset:
                    await self._session.turns.through(self._apply(batch, offset, unacked, cumulative))
        except OffsetTrimmedError:
            pass
        except WeirError as failed:
            log.info("an acknowledgement at offset %d of %s is lost: %s", offset, self._topic.name, failed)
            self._lost = failed

    def _apply(self, batch: Batch, offset: int, unacked: int, cumulative: bool) -> Work:
        is_first = batch.base_offset == offset  # else the client means the entry before the next batch
        unacked &= unacknowledged(batch.count)
        if cumulative and not is_first:
            self._up_to(offset)
        elif batch.count > 1 and self._consumer.gets_parts:
            # Which part of it the client had then nobody knows: it is delivered again.
            if cumulative:
                self._up_to(offset - 1)
        elif cumulative and not unacked:
            self._up_to(batch.end_offset - 1)
        elif is_first:
            if cumulative:
                self._up_to(offset - 1)
            yield from self._ack(ranges_of(offset, unacknowledged(batch.count) & ~unacked))

    # --- answers -----------------------------------------------------------------------------------------

    def _answer(self, request_id: int) -> None:
        """Answer once it is safe; one wait serves all that came while the last one ran."""
        self._session.load.request()  # else a client could pile them up faster than they are stored
        self._to_answer.append(request_id)
        if self._answering is None:
            self._answering = self._session.tasks.spawn(self._answer_all(), "ack-response")

    async def _answer_all(self) -> None:
        while self._to_answer:
            requests, self._to_answer = self._to_answer, []
            try:
                await self._applied()
                await self._consumer.persisted()
            except WeirError as failed:
                for request_id in requests:
                    self._session.answer(
                        api.CommandAckResponse(
                            consumer_id=self._consumer_id,
                            request_id=request_id,
                            error=code_of(failed),
                            message=text_of(failed),
                        )
                    )
            else:
                for request_id in requests:
                    self._session.outbox.say(ack_response(self._consumer_id, request_id))
            finally:
                self._session.load.answered(len(requests))
        self._answering = None

    async def _applied(self) -> None:
        """Wait until everything that had to be looked up is acknowledged; raises if something could not be."""
        if self._looking:
            await asyncio.wait(list(self._looking))
        lost, self._lost = self._lost, None
        if lost is not None:
            raise lost
