"""Acknowledgments of one consumer: translates message ids to offsets and answers requests with receipts.

A client acknowledges a whole batch by the id of its entry, or a part of it by an ack set (a bit per message, set
if it is not acknowledged). The broker needs offsets, so `Unacked` stores the size of each delivered batch and
which of its messages this consumer was to get.
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
    """A delivered batch: its first offset and size, and a bit for each unacknowledged message (None: all).

    `parts`: the messages of each delivery if it took several, for example when a consumer has left and its keys
    moved here. `whole`: the number of deliveries that were acknowledged as a whole."""

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


#: Batches to remember: an ordered consumer has no limit of unacknowledged messages, and must not fill the broker's
#: memory with them. The link drops the oldest, and looks them up in the log if they are acknowledged later.
MOST_BATCHES = 200_000
#: Half the cost of calling the class; it is made once per delivered entry.
_new = tuple.__new__


def ranges_of(base: int, bits: int) -> list[Range]:
    """The offsets `base + i` of the set bits."""
    return runs_of(bits, base)


def joined(ranges: list[Range]) -> list[Range]:
    """The ranges with adjacent ones merged."""
    found = ranges[:1]
    for first, end in ranges[1:]:
        if found[-1][1] == first:
            found[-1] = (found[-1][0], end)
        else:
            found.append((first, end))
    return found


class Unacked:
    """Delivered batches by ledger position, in the order of delivery."""

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
        """The number of unacknowledged messages."""
        return sum(batch.waiting for batch in self._batches.values())

    def __len__(self) -> int:
        return len(self._batches)

    def ack(self, place: EntryPosition, unacked: int = 0) -> list[Range] | None:
        """Acknowledge a batch, except the bits `unacked`. Returns the newly acknowledged offsets; None for an
        unknown batch."""
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
        """Acknowledge one of several deliveries of a batch. Only a non-empty ack set identifies the delivery.
        Whole acknowledgments take effect when all deliveries have one, so that no unprocessed message counts as
        acknowledged."""
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
        """Acknowledge everything before the offset. A few batches that were delivered out of order may remain;
        acknowledging them again does no harm."""
        batches = self._batches
        while batches:
            place = next(iter(batches))
            if batches[place].base >= offset:
                return
            del batches[place]

    def give_back(self, place: EntryPosition) -> list[Range]:
        """Remove a batch for redelivery; returns its unacknowledged offsets (none for an unknown batch)."""
        batch = self._batches.pop(place, None)
        return [] if batch is None else batch.ranges()

    def clear(self) -> None:
        self._batches.clear()


def _mask(batch: Delivered) -> int:
    return unacknowledged(batch.size) if batch.mask is None else batch.mask


def _with_part(known: Delivered, more: int) -> Delivered:
    """Add a delivery with other messages of the batch; the same messages would be a redelivery."""
    before = _mask(known)
    return known._replace(mask=before | more, parts=(*(known.parts or (before,)), more))


log = logging.getLogger(__name__)

#: Concurrent log lookups for acknowledged batches that this connection did not deliver.
_MAX_LOOK_UPS = 1000
#: Ids without ack sets that are acknowledged without yielding.
_FEW = 16
#: Ids, words of ack sets, or ranges of offsets between two checks whether to yield.
_AT_A_TIME = 512


class Acking:
    """Applies the client's acknowledgments, and answers them when they are durable."""

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
        """`in_order`: whether the subscription is ordered, so that adjacent ranges merge; shared subscriptions
        count each batch."""
        self._session = session
        self._consumer_id = consumer_id
        self._topic = topic
        self._consumer = consumer
        self._unacked = unacked
        self._in_order = in_order
        self._to_answer: list[int] = []
        self._answering: asyncio.Task[None] | None = None
        self._looking: dict[asyncio.Task[None], None] = {}
        #: The error of an acknowledgment that failed since the last response.
        self._lost: WeirError | None = None

    def take(self, command: api.CommandAck) -> Work | None:
        """Acknowledge; raises errors that are known immediately. Returns work that yields for large commands."""
        if command.HasField("txnid_most_bits") or command.HasField("txnid_least_bits"):
            raise NotAllowedError(NO_TRANSACTIONS)
        ids = command.message_id
        if command.ack_type == api.CommandAck.Cumulative and len(ids) != 1:
            raise NotAllowedError("a cumulative acknowledgment must name exactly one message")
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
        # In the middle of a batch, clients acknowledge the entry before it: the offset before its first.
        following = self._unacked.get((ledger, entry + 1))
        if following is not None:
            self._up_to(following.base - 1)
        else:
            self._look_up(place, unacked, cumulative=True)

    def _up_to(self, offset: int) -> None:
        self._consumer.ack_up_to(offset)
        self._unacked.ack_before(offset + 1)

    # --- batches of earlier connections ------------------------------------------------------------------

    def _look_up(self, place: EntryPosition, unacked: int, *, cumulative: bool) -> None:
        """Acknowledge a batch from before a reconnect: the log has the messages of its id."""
        offset = self._topic.offset_of(*place)
        if self._topic.position_of(offset) != place or offset >= self._topic.end_offset:
            return  # trimmed away, or never sent
        if len(self._looking) >= _MAX_LOOK_UPS:
            # The subscription redelivers it, which clients must expect after a lost connection.
            self._lost = TooManyError(f"{_MAX_LOOK_UPS} acknowledgments of earlier deliveries are in progress")
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
            log.info("acknowledgment at offset %d of %s failed: %s", offset, self._topic.name, failed)
            self._lost = failed

    def _apply(self, batch: Batch, offset: int, unacked: int, cumulative: bool) -> Work:
        is_first = batch.base_offset == offset  # otherwise the client means the entry before the next batch
        unacked &= unacknowledged(batch.count)
        if cumulative and not is_first:
            self._up_to(offset)
        elif batch.count > 1 and self._consumer.gets_parts:
            # The part that the client got is unknown, so the subscription redelivers the batch.
            if cumulative:
                self._up_to(offset - 1)
        elif cumulative and not unacked:
            self._up_to(batch.end_offset - 1)
        elif is_first:
            if cumulative:
                self._up_to(offset - 1)
            yield from self._ack(ranges_of(offset, unacknowledged(batch.count) & ~unacked))

    # --- responses ---------------------------------------------------------------------------------------

    def _answer(self, request_id: int) -> None:
        """Answer when the acknowledgment is durable; one wait serves all requests received during the last one."""
        self._session.load.request()  # otherwise a client could send them faster than they are stored
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
        """Wait until all lookups are done and acknowledged; raises the error of a failed one."""
        if self._looking:
            await asyncio.wait(list(self._looking))
        lost, self._lost = self._lost, None
        if lost is not None:
            raise lost
