"""Acknowledgements of one consumer: message ids in, offsets to the broker, answers where they are asked for.

What was delivered to a consumer and awaits its answer: which offsets a message id stands for.

A client acknowledges a whole batch by the id of its entry, or a part of it by an ack set (a bit per message, set
where it is not acknowledged). Offsets are what the broker wants, so the size of each batch is kept, and which of
its messages were meant for this consumer. Plain values; no I/O.
"""

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from weir.broker.api.consumers import Consumer
from weir.broker.api.topics import Topic
from weir.gateway.pulsar.errors import NO_TRANSACTIONS, EntryPosition, code_of, place_of, text_of
from weir.model.batch import Batch, runs_of
from weir.model.errors import NotAllowedError, OffsetTrimmedError, TooManyError, WeirError
from weir.runtime.tasks import UNIT_ELEMENTS, Work
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.fast_frames import ack_response
from weir.wire.pulsar.ids import bits_from_ack_set, unacknowledged

if TYPE_CHECKING:
    from weir.gateway.pulsar.session import Session


#: [first, end) in offsets.
Range = tuple[int, int]


class Delivered(NamedTuple):
    """A batch: its first offset and size, and a bit for each message that awaits its answer (None: all).

    `parts`: what each delivery of it had, where there were several, as when keys of one batch come from a consumer
    that has left. `whole`: how many of them were acknowledged as a whole."""

    base: int
    size: int
    mask: int | None = None
    parts: tuple[int, ...] = ()
    whole: int = 0

    @property
    def waiting(self) -> int:
        return self.size if self.mask is None else self.mask.bit_count()

    def ranges(self) -> list[Range]:
        return [(self.base, self.base + self.size)] if self.mask is None else ranges_of(self.base, self.mask)


#: More are not remembered: a consumer in order has no limit on what it leaves unacknowledged, and must not fill
#: the broker's memory with it. The oldest are forgotten; if they are acknowledged after all, they are looked up.
MOST_BATCHES = 200_000
#: Half the cost of calling the class; it is made once per delivered entry.
_new = tuple.__new__


def ranges_of(base: int, bits: int) -> list[Range]:
    """The offsets `base + i` of the bits that are set."""
    return runs_of(bits, base)


def joined(ranges: list[Range]) -> list[Range]:
    """The same with neighbours as one."""
    found = ranges[:1]
    for first, end in ranges[1:]:
        if found[-1][1] == first:
            found[-1] = (found[-1][0], end)
        else:
            found.append((first, end))
    return found


class Unacked:
    """Delivered batches by their place, in the order of delivery."""

    def __init__(self) -> None:
        self._batches: OrderedDict[EntryPosition, Delivered] = OrderedDict()

    def delivered(self, place: EntryPosition, base: int, size: int, wanted: int | None) -> None:
        known = self._batches.get(place)
        if known is not None and wanted is not None and not _mask(known) & wanted:
            self._batches[place] = _with_part(known, wanted)
            return
        self._batches[place] = _new(Delivered, (base, size, wanted, (), 0))
        if len(self._batches) > MOST_BATCHES:
            self._batches.popitem(last=False)

    def get(self, place: EntryPosition) -> Delivered | None:
        return self._batches.get(place)

    @property
    def messages(self) -> int:
        """How many await their answer."""
        return sum(batch.waiting for batch in self._batches.values())

    def __len__(self) -> int:
        return len(self._batches)

    def ack(self, place: EntryPosition, unacked: int = 0) -> list[Range] | None:
        """A batch is acknowledged, all of it but the bits `unacked`. Answers the offsets that are so now and were
        not before; None for a batch that is not here."""
        batch = self._batches.get(place)
        if batch is None:
            return None
        if batch.parts:
            return self._ack_part(place, batch, unacked)
        if not unacked:
            del self._batches[place]
            return batch.ranges()
        before = unacknowledged(batch.size) if batch.mask is None else batch.mask
        left = before & unacked
        if left:
            self._batches[place] = batch._replace(mask=left)
        else:
            del self._batches[place]
        return ranges_of(batch.base, before & ~unacked)

    def _ack_part(self, place: EntryPosition, batch: Delivered, unacked: int) -> list[Range]:
        """Of a batch that came in several deliveries, a client's answer to one of them. Which one it means only a
        set that is not empty tells; whole ones count once all are answered, so that nothing is taken for processed
        that may not be."""
        waiting = batch.mask or 0
        whole = batch.whole
        if unacked:
            meant = [part for part in batch.parts if not unacked & ~part]
            acked = waiting & meant[0] & ~unacked if len(meant) == 1 else 0
        else:
            whole += 1
            acked = waiting if whole >= len(batch.parts) else 0
        if acked == waiting:
            del self._batches[place]
        else:
            self._batches[place] = batch._replace(mask=waiting & ~acked, whole=whole)
        return ranges_of(batch.base, acked)

    def ack_before(self, offset: int) -> None:
        """Everything before the offset is acknowledged. Batches that were delivered out of order may stay; they
        are few, and acknowledging them again does no harm."""
        batches = self._batches
        while batches:
            place = next(iter(batches))
            if batches[place].base >= offset:
                return
            del batches[place]

    def give_back(self, place: EntryPosition) -> list[Range]:
        """A batch is to be delivered anew: its offsets that await their answer; none if it is not here."""
        batch = self._batches.pop(place, None)
        return [] if batch is None else batch.ranges()

    def clear(self) -> None:
        self._batches.clear()


def _mask(batch: Delivered) -> int:
    return unacknowledged(batch.size) if batch.mask is None else batch.mask


def _with_part(known: Delivered, more: int) -> Delivered:
    """The batch with one more delivery, of other messages than before: the same ones are a delivery anew."""
    before = _mask(known)
    return known._replace(mask=before | more, parts=(*(known.parts or (before,)), more))


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
