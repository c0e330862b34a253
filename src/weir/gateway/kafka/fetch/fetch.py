"""Executes one fetch: reads batches within the client's limits, and waits while they are below its minimum.

It converts batches of other protocols to Kafka's format, and Weir's transaction markers to control batches.
"""

import asyncio
from contextlib import suppress
from functools import partial

from weir.broker.api.topics import LogReader
from weir.gateway.kafka.errors import Code, code_of
from weir.gateway.kafka.fetch.fetch_sessions import FetchPart, FetchParts
from weir.gateway.kafka.metadata import UNSAID, Node, check_epoch
from weir.gateway.kafka.session import Session
from weir.model.batch import Batch, BatchFlags, BatchFormat
from weir.model.errors import TooManyError, WeirError, WireError
from weir.model.ids import Buffer
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.runtime.adjustable_clock import liveness
from weir.wire.formats.marker import decode_marker
from weir.wire.formats.table import kafka_records, kafka_records_in_steps, opened_size
from weir.wire.kafka import messages as m
from weir.wire.kafka.record_batch import patched, with_leader_epoch
from weir.wire.kafka.records import control_batch

#: Size of a control batch in a response; all have the same size.
MARKER_BYTES = len(control_batch(0, 0, True, 0))


def marker_records(batch: Batch, leader_epoch: int) -> list[Buffer]:
    """The control batch that ends the transaction for a reader of its partition."""
    if batch.stamp is None:
        raise WireError(f"the transaction marker at offset {batch.base_offset} has no producer id")
    commit = not batch.flags & BatchFlags.ABORT
    made = control_batch(batch.stamp.producer_id, batch.stamp.epoch, commit, decode_marker(batch.payload))
    return patched(made, batch.base_offset, leader_epoch)


_PartData = m.FetchResponse.PartitionData
_READ_COMMITTED = 1
#: Bytes reserved for the first batch when capacity is low; a larger batch waits for its full size.
_FIRST_BYTES = 64 * 1024
#: Topics that one fetch loads concurrently.
_LOADED_AT_ONCE = 64
#: Errors of a client with outdated metadata; the response names the current leader.
_LED_OTHERWISE = (Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH)
#: Nearly every batch: an identity is cheaper than arithmetic on flags.
_PLAIN = BatchFlags.NONE
#: Formats of batches that the gateway need not decode.
_AS_IT_CAME = (BatchFormat.KAFKA, BatchFormat.MARKER)


class Fetching:
    """Reads for one request."""

    def __init__(self, session: "Session", request: m.FetchRequest, parts: FetchParts) -> None:
        self._session = session
        self._parts = parts
        self._committed = request.isolation_level == _READ_COMMITTED
        self._min_bytes = request.min_bytes
        self._max_bytes = min(request.max_bytes, session.limits.max_fetch_bytes)
        self._max_wait_s = request.max_wait_ms / 1000
        self._deadline = liveness(session.clock).monotonic() + self._max_wait_s
        #: Whether the wait time ended without capacity, because clients left too many bytes unread.
        self._starved = False
        self._size = 0
        #: Whether a batch did not fit. Smaller batches might still fit, but reading them to find out costs more.
        self._full = False
        self._failed = False
        #: Topics for which this fetch has read the metadata store.
        self._asked: set[TopicName] = set()
        #: The partitions that were checked, in order.
        self.seen: dict[FetchPart, None] = {}

    async def run(self) -> None:
        """Read until the response has enough bytes, and decode the batches that need conversion."""
        await self._gather()
        for part in self.seen:
            if part.batches and (part.opens or (part.log is not None and not part.log.whole)):
                await self._open(part)

    async def _gather(self) -> None:
        """Read every partition that may have new messages, and those that grow, until the response has enough."""
        wanted = self._parts.begin(self._committed)
        await self._load(wanted)
        for part in wanted:
            await self._look(part)
            await self._session.turns.pause()
        if self._enough() or self._max_wait_s <= 0 or not len(self._parts):
            return
        clock, pressure = liveness(self._session.clock), self._session.unread.budget.on_pressure
        while (left_s := self._deadline - clock.monotonic()) > 0:
            late = asyncio.get_running_loop().create_future()
            timer = clock.call_later(left_s, partial(_wake, late))
            if self._size:
                pressure[self] = partial(_wake, late)
            try:
                grown = await self._parts.grown(late)
            finally:
                timer.cancel()
                pressure.pop(self, None)
            if self._size and self._session.unread.budget.waiting:
                return  # others wait for the bytes that this fetch holds: answer with the batches so far
            for part in grown:
                await self._look(part)
                await self._session.turns.pause()
            if self._enough():
                return

    def _enough(self) -> bool:
        return self._failed or self._full or self._size >= self._min_bytes or 0 < self._size >= self._max_bytes

    # --- one partition ----------------------------------------------------------------------------------

    async def _look(self, part: FetchPart) -> None:
        if part not in self.seen:
            self.seen[part] = None
            part.begin()
        try:
            await self._find(part)
            if not part.error:
                await self._read(part)
        except WeirError as failure:
            self._refuse(part, code_of(failure))
        if part.error:
            self._failed = True

    def _refuse(self, part: FetchPart, code: int) -> None:
        """Set a partition's error, and the current leader if the client's metadata are outdated."""
        part.error, part.batches = code, []
        if code in _LED_OTHERWISE and part.name is not None:
            part.leader = self._session.nodes.leader(part.name, code == Code.FENCED_LEADER_EPOCH)

    async def _load(self, parts: list[FetchPart]) -> None:
        """Load missing topics concurrently; failures surface when their partitions are read."""
        catalog, topics = self._session.services.catalog, self._session.topics
        missing: list[TopicName] = []
        for part in parts:
            await self._session.turns.pause()
            with suppress(WeirError):
                name = part.name or await catalog.look_known(self._session.role, *part.key, self._asked)
                if topics.get(name) is None:
                    missing.append(name)
        for first in range(0, len(missing) if len(missing) > 1 else 0, _LOADED_AT_ONCE):
            some = missing[first : first + _LOADED_AT_ONCE]
            await asyncio.gather(*map(topics.load, some), return_exceptions=True)

    async def _find(self, part: FetchPart) -> None:
        """Find the partition's topic, which may have been unloaded or deleted since the last read."""
        session, services = self._session, self._session.services
        if part.name is None:
            part.name = await services.catalog.look_known(session.role, *part.key, self._asked)
        if part.access_revision != services.authoriser.revision:
            services.guard.check(session.role, part.name, Action.CONSUME)
            part.access_revision = services.authoriser.revision
        topic = session.topics.get(part.name)
        if topic is None:
            try:
                topic = await session.topics.load(part.name)
            except WeirError as failure:
                self._refuse(part, code_of(failure))
                part.name = None  # look it up again: another topic may have the name by the next fetch
                return
        self._parts.found(part, topic)

    async def _read(self, part: FetchPart) -> None:
        """Read more of a partition, from the end of the previous read."""
        topic, log = part.topic, part.log
        if topic is None or log is None:
            return
        limit = part.limit(self._committed)
        part.marks = (topic.end_offset, topic.stable_offset, log.start_offset)
        if part.leader_epoch not in (UNSAID, topic.leader_epoch):
            check_epoch(part.leader_epoch, topic.leader_epoch, part.name)
        if not log.start_offset <= part.offset <= topic.end_offset:
            part.error = Code.OFFSET_OUT_OF_RANGE
        elif part.next >= limit:
            if part.offset >= limit:
                self._parts.quiet(part)
        else:
            await self._read_on(part, log, limit)

    async def _read_on(self, part: FetchPart, log: LogReader, limit: int) -> None:
        """Read batches one read after the other, until the response is full. Each read reserves its bytes first:
        the first batch of a response waits for capacity, more follow while less than half of the budget is in
        use."""
        unread, needed = self._session.unread, 0
        while part.next < limit and not self._starved:
            spare = unread.left_bytes - unread.budget.limit_bytes // 2
            left = min(self._max_bytes - self._size, spare if self._size else max(spare, _FIRST_BYTES))
            room = max(needed, min(part.max_bytes - part.size, left))
            if self._size and (self._full or room <= 0):
                self._full = self._full or left <= 0
                return
            if not await self._reserve(max(0, room)):
                return
            found = log.read_cached(part.next, room)
            if found is None:
                found = await log.read(part.next, room)
            before, size = part.next, part.size
            fits = self._take(part, found, left, limit)
            needed = part.size - size
            if needed > room and not self._size_fits(needed - room):
                # The first batch is larger than its reservation: it waits for capacity like any other.
                part.batches, part.next, part.size, self._size = [], before, size, 0
                unread.release(room)
                continue
            self._settle(room, needed)
            self._full, needed = not fits, 0
            if self._full or part.next == before:
                return

    async def _reserve(self, size: int) -> bool:
        """Reserve bytes within the client's wait time; False if that ends without capacity."""
        budget, left_s = self._session.unread.budget, self._deadline - liveness(self._session.clock).monotonic()
        if budget.has_capacity(size):
            self._session.unread.acquire(size)
            return True
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                await self._session.unread.reserve(size)
        except (TimeoutError, TooManyError):
            self._starved = True
        return not self._starved

    def _size_fits(self, more: int) -> bool:
        unread = self._session.unread
        return unread.budget.used_bytes == unread.used_bytes or unread.budget.has_capacity(more)

    def _settle(self, reserved: int, taken: int) -> None:
        """Adjust the reservation to the bytes that were read."""
        if taken > reserved:
            self._session.unread.acquire(taken - reserved)
        else:
            self._session.unread.release(reserved - taken)

    def _take(self, part: FetchPart, found: list[Batch], left: int, limit: int) -> bool:
        """Add batches that fit into the response (`left` bytes) and into the partition's limit; False if the
        response is full. The first batch of a response fits at any size, so that small limits cannot stop a
        client."""
        taken, had_room = 0, True
        share = part.max_bytes - part.size
        for batch in found:
            size = taken + _size_of(batch)
            if batch.base_offset >= limit:
                break
            if size > left and (taken or self._size):
                had_room = False
                break
            if size > share and (taken or self._size):
                break
            part.batches.append(batch)
            part.opens = part.opens or batch.format not in _AS_IT_CAME
            part.next = batch.base_offset + batch.count
            taken = size
        part.size += taken
        self._size += taken
        return had_room

    def done(self) -> None:
        """Release the batches after the response is built; only the response references them then."""
        for part in self.seen:
            part.batches, part.pieces = [], None

    async def _open(self, part: FetchPart) -> None:
        """Decode batches of other protocols and partly compacted ones. Yields after each batch, because a
        malicious producer may have made it expensive to decode."""
        log, pieces = part.log, []
        for batch in part.batches:
            wanted = None if log is None else log.visible(batch)
            if wanted is None and batch.format in _AS_IT_CAME:
                pieces += _as_it_came(batch, _epoch_of(part, batch))
            else:
                made = await self._session.turns.through(kafka_records_in_steps(batch, wanted))
                pieces += with_leader_epoch(made, _epoch_of(part, batch))
                await self._session.turns.next()
        part.pieces = pieces

    # --- the answer -------------------------------------------------------------------------------------

    def answer(self, part: FetchPart) -> _PartData:
        """The response for one partition."""
        index = part.key[1]
        if part.error:  # without any other data, as in Kafka
            return _PartData(
                partition_index=index,
                error_code=part.error,
                current_leader=None if part.leader is None else _leader(part.leader),
                high_watermark=-1,
                last_stable_offset=-1,
                log_start_offset=-1,
                aborted_transactions=None,
                records=b"",
            )
        end, stable, start = part.marks or (-1, -1, -1)
        return _PartData(
            partition_index=index,
            high_watermark=end,
            last_stable_offset=stable,
            log_start_offset=start,
            aborted_transactions=self._aborted(part) if self._committed else None,
            records=_records(part),
        )

    def _aborted(self, part: FetchPart) -> list[m.FetchResponse.AbortedTransaction]:
        if part.log is None or not part.batches:
            return []
        return [
            m.FetchResponse.AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in part.log.aborted(part.offset, part.next)
        ]


def _leader(leader: tuple[Node, int]) -> m.FetchResponse.LeaderIdAndEpoch:
    node, epoch = leader
    return m.FetchResponse.LeaderIdAndEpoch(leader_id=node.node_id, leader_epoch=epoch)


def _records(part: FetchPart) -> list[Buffer]:
    """The stored batches at their offsets, as a list of buffers to avoid a copy."""
    if part.pieces is not None:
        return part.pieces
    out: list[Buffer] = []
    if part.batches:
        epoch, last = _epoch_of(part, part.batches[0]), _epoch_of(part, part.batches[-1])
        for batch in part.batches:
            out += _as_it_came(batch, epoch if epoch == last else _epoch_of(part, batch))
    return out


def _epoch_of(part: FetchPart, batch: Batch) -> int:
    """The leader epoch in which a batch was written; consumers send it back in OffsetForLeaderEpoch."""
    return 0 if part.topic is None else part.topic.epoch_at(batch.base_offset)


def _as_it_came(batch: Batch, leader_epoch: int) -> list[Buffer]:
    """A batch that needs no decoding: a Kafka batch or a marker."""
    if batch.flags is not _PLAIN:
        if batch.format is BatchFormat.MARKER:
            return marker_records(batch, leader_epoch)
        if batch.flags & (BatchFlags.HIDDEN | BatchFlags.PRIVATE):
            return with_leader_epoch(kafka_records(batch, 0), leader_epoch)
    return patched(batch.payload, batch.base_offset, leader_epoch)


def _size_of(batch: Batch) -> int:
    """The size in the response. A batch of another protocol is decompressed for its consumer, so it may grow."""
    if batch.format is BatchFormat.KAFKA:
        return len(batch.payload)
    return MARKER_BYTES if batch.format is BatchFormat.MARKER else opened_size(batch)


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
