"""Publishes the record batches of one connection and answers with their offsets.

The connection has one broker producer for each partition that it writes to. A producer opens at the first batch
for its partition, and again after the broker closed it. The connection publishes all requests of a receive buffer
before it awaits anything.

A produce request adds its partitions to the producer's transaction (Kafka's transactions, version 2). For a
partition that is already part of it, this costs two lookups and no wait.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from weir.broker.api.producers import Producer, ProducerRequest, Receipt
from weir.broker.api.topics import Topic
from weir.broker.api.transactions import ProducerIdentity, Transactions
from weir.gateway.kafka.errors import Code, RefusedError, text_of
from weir.gateway.kafka.produce.record_validation import (
    BadRecordsError,
    RecordTimes,
    check_keys,
    check_times,
    judged,
    outgoing_of,
    times_of,
)
from weir.gateway.kafka.produce.sequence_gaps import Gaps
from weir.gateway.kafka.transaction_errors import join_code, produce_code, transactions_of
from weir.model.batch import Stamp
from weir.model.errors import (
    NotAuthorisedError,
    OutOfOrderSequenceError,
    StaleEpochError,
    TooManyError,
    TopicClosedError,
    TopicNotFoundError,
    WeirError,
)
from weir.model.ids import Buffer
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.runtime.adjustable_clock import clients_behind_ms
from weir.runtime.tasks import LOOK_UP_UNITS, UNIT_BYTES, Work
from weir.runtime.waiters import Waiters
from weir.wire.kafka import messages as m
from weir.wire.kafka.record_batch import transactional_producer

if TYPE_CHECKING:
    from weir.gateway.kafka.session import Session

#: Clients of older versions send AddPartitionsToTxn first.
JOINS_SINCE = 12

#: Partitions and their record batches, by producer.
Unjoined: TypeAlias = "dict[ProducerIdentity, list[tuple[PartitionLink, Buffer]]]"


def unjoined(
    transactions: Transactions,
    name: str,
    sent: "Sequence[tuple[Key, Buffer]]",
    links: "Mapping[Key, PartitionLink]",
) -> Unjoined:
    """Partitions with transactional batches that are not known to be part of the transaction yet."""
    found: Unjoined = {}
    for key, records in sent:
        producer, link = transactional_producer(records), links.get(key)
        if producer is None or link is None:
            continue
        joined = transactions.joined(name, *producer)
        if link.joined is joined:
            continue
        if link.part in joined:
            link.joined = joined
        else:
            found.setdefault(ProducerIdentity(*producer), []).append((link, records))
    return found


async def join(
    transactions: Transactions, name: str, wanted: "Mapping[ProducerIdentity, Sequence[PartitionLink]]"
) -> "dict[Key, WeirError]":
    """Add partitions to the transaction, which begins if none is open; return the failures by partition."""
    failures: dict[Key, WeirError] = {}
    for identity, links in wanted.items():
        try:
            await transactions.add_partitions(name, identity, [link.part for link in links])
        except WeirError as failure:
            refused = RefusedError(Code(join_code(failure)), text_of(failure))
            failures.update(dict.fromkeys((link.key for link in links), refused))
    return failures


_Part = m.ProduceResponse.PartitionProduceResponse


def tell_refusal(
    session: "Session",
    part: _Part,
    failure: BaseException,
    *,
    key: tuple[str | bytes, int],
    version: int,
    response: m.ProduceResponse,
) -> None:
    """Fill in the error of a partition's response, and the current leader's address if another broker leads it."""
    part.error_code, part.error_message = produce_code(failure, version), text_of(failure)
    if isinstance(failure, BadRecordsError):
        part.record_errors = failure.told
    if part.error_code == Code.NOT_LEADER_OR_FOLLOWER:
        _tell_leader(session, response, part, key)


def _tell_leader(
    session: "Session", response: m.ProduceResponse, part: _Part, key: tuple[str | bytes, int]
) -> None:
    try:
        leader = session.nodes.leader(session.services.catalog.find(*key))
    except WeirError:
        return  # the topic was deleted meanwhile
    if leader is None:
        return
    node, epoch = leader
    part.current_leader = m.ProduceResponse.LeaderIdAndEpoch(leader_id=node.node_id, leader_epoch=epoch)
    if all(one.node_id != node.node_id for one in response.node_endpoints):
        response.node_endpoints.append(
            m.ProduceResponse.NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
        )


log = logging.getLogger(__name__)

#: A partition as a request names it: the topic's name, or since version 13 its id, and its number.
Key = tuple[str | bytes, int]
Answer = Callable[[m.ProduceResponse | None], None]

_BY_ID_SINCE = 13
#: Producers that one request opens concurrently.
_OPENED_AT_ONCE = 64
#: Partitions of one request that are published in one turn; a larger request yields to other connections.
_PUBLISHED_AT_ONCE = 256
_PartResponse = m.ProduceResponse.PartitionProduceResponse
_TopicResponse = m.ProduceResponse.TopicProduceResponse
#: Refusals by a topic that knows the producer's state: the connection need not note a sequence gap for these.
_TOPIC_KNOWS = (OutOfOrderSequenceError, StaleEpochError)


def _joins(request: m.ProduceRequest, version: int) -> bool:
    """Whether the request adds its partitions to a transaction."""
    return version >= JOINS_SINCE and request.transactional_id is not None


def _check_acks(acks: int) -> None:
    if acks not in (-1, 0, 1):
        raise RefusedError(Code.INVALID_REQUIRED_ACKS, f"acks={acks} is invalid; use 0, 1 or -1 (all)")


class PartitionLink:
    """One `api.Producer` of a connection, with its partition's cached policies."""

    __slots__ = (
        "access_revision",
        "delays",
        "joined",
        "key",
        "keyed",
        "part",
        "producer",
        "times",
        "topic",
        "topics_revision",
    )

    def __init__(self, key: Key, part: TopicName, topic: Topic, producer: Producer) -> None:
        self.key = key
        self.part = part
        self.topic = topic
        self.producer = producer
        #: Policies of the topic as of `topics_revision`: timestamp rules, whether each record needs a key, and
        #: whether records may request a delay.
        self.times = RecordTimes()
        self.keyed = False
        self.delays = False
        self.topics_revision = -1
        #: The partitions of the transaction in which this partition was found last.
        self.joined: Mapping[TopicName, None] | None = None
        #: The revision of grants at which the role was allowed to produce.
        self.access_revision = -1


class _Pending:
    """A request with partitions that are not stored yet."""

    __slots__ = ("acks", "answer", "answered", "deadline", "left", "response", "transactional_id", "version")

    def __init__(self, request: m.ProduceRequest, version: int, answer: Answer, deadline: float) -> None:
        self.version = version
        self.acks = request.acks
        self.transactional_id = request.transactional_id
        self.answer = answer
        self.deadline = deadline
        self.response = m.ProduceResponse()
        #: Partitions that are not stored, plus one while `_publish` still adds partitions.
        self.left = 1
        self.answered = False


class Publishing:
    """The producers of one connection and their pending requests."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._links: dict[Key, PartitionLink] = {}
        #: The topics' revision at which links to deleted topics were last dropped.
        self._as_of = -1
        self._pending: dict[_Pending, None] = {}
        self._idle = Waiters()
        self._gaps = Gaps()
        #: Links that published a batch of the current receive buffer.
        self.senders: dict[PartitionLink, None] = {}

    def has(self, key: Key) -> bool:
        """Whether a producer of the partition is open."""
        return key in self._links

    # --- requests ----------------------------------------------------------------------------------------

    def take(self, request: m.ProduceRequest, version: int, answer: Answer) -> Coroutine[Any, Any, None] | None:
        """Publish the batches of a request. Returns a coroutine that does so if it must first open producers or
        add partitions to a transaction."""
        if self._as_of != self._session.services.registry.topics.revision:
            self._forget_dead()
        by_id = version >= _BY_ID_SINCE
        missing: dict[Key, None] = {}
        parts = 0
        for topic in request.topic_data:
            name = topic.topic_id if by_id else topic.name
            parts += len(topic.partition_data)
            for data in topic.partition_data:
                if (name, data.index) not in self._links:
                    missing[name, data.index] = None
        if (
            missing
            or parts > _PUBLISHED_AT_ONCE
            or (_joins(request, version) and self._unjoined(request, version))
        ):
            return self._open_and_publish(list(missing), request, version, answer)
        for _ in self._publish(request, version, answer, {}):
            pass
        return None

    async def _open_and_publish(
        self, missing: list[Key], request: m.ProduceRequest, version: int, answer: Answer
    ) -> None:
        failures: dict[Key, WeirError] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(max(1, request.timeout_ms) / 1000):
                await self._open_all(missing, failures)
        late = [key for key in missing if key not in self._links and key not in failures]
        failures |= dict.fromkeys(late, RefusedError(Code.REQUEST_TIMED_OUT, "the partition did not open in time"))
        if _joins(request, version):
            failures |= await self._join(request, version)
        await self._session.turns.through(self._publish(request, version, answer, failures))

    async def _open_all(self, missing: Sequence[Key], failures: dict[Key, WeirError]) -> None:
        """Open the missing producers; a partition accepts writes only after recovery from failed writes."""
        for first in range(0, len(missing), _OPENED_AT_ONCE):
            some = missing[first : first + _OPENED_AT_ONCE]
            opened = await asyncio.gather(*map(self._open, some), return_exceptions=True)
            for key, failure in zip(some, opened, strict=True):
                if isinstance(failure, WeirError):
                    failures[key] = failure
                elif failure is not None:
                    raise failure

    def _unjoined(self, request: m.ProduceRequest, version: int) -> Unjoined:
        by_id = version >= _BY_ID_SINCE
        if self._session.services.transactions is None:
            return {}
        sent = [
            ((topic.topic_id if by_id else topic.name, data.index), data.records or b"")
            for topic in request.topic_data
            for data in topic.partition_data
        ]
        return unjoined(transactions_of(self._session), request.transactional_id or "", sent, self._links)

    async def _join(self, request: m.ProduceRequest, version: int) -> dict[Key, WeirError]:
        """Add partitions with valid batches to the transaction; return the failures by partition."""
        failures: dict[Key, WeirError] = {}
        wanted: dict[ProducerIdentity, list[PartitionLink]] = {}
        for identity, sent in self._unjoined(request, version).items():
            for link, records in sent:
                try:
                    _check_acks(request.acks)
                    judged(records, version, self._session.limits)
                    self._recheck(link)
                except WeirError as refused:
                    failures[link.key] = refused
                else:
                    wanted.setdefault(identity, []).append(link)
        if wanted:
            failures |= await join(transactions_of(self._session), request.transactional_id or "", wanted)
        return failures

    def _publish(
        self, request: m.ProduceRequest, version: int, answer: Answer, failures: dict[Key, WeirError]
    ) -> Work:
        by_id = version >= _BY_ID_SINCE
        deadline = self._session.heard_at + max(1, request.timeout_ms) / 1000
        pending = _Pending(request, version, answer, deadline)
        for topic in request.topic_data:
            name = topic.topic_id if by_id else topic.name
            parts = []
            for data in topic.partition_data:
                part = _PartResponse(index=data.index, base_offset=-1, log_append_time_ms=-1, log_start_offset=-1)
                parts.append(part)
                self._publish_part((name, data.index), data.records, pending, part, failures)
                yield LOOK_UP_UNITS + len(data.records or b"") // UNIT_BYTES
            pending.response.responses.append(
                _TopicResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=parts)
            )
        self._count_down(pending)
        if pending.left:
            self._pending[pending] = None

    def _publish_part(
        self,
        key: Key,
        records: Buffer | None,
        pending: _Pending,
        part: _PartResponse,
        failures: dict[Key, WeirError],
    ) -> None:
        link = self._links.get(key)
        session = self._session
        stamp: Stamp | None = None
        try:
            _check_acks(pending.acks)
            header = judged(records, pending.version, session.limits)
            stamp = header.stamp
            if key in failures:
                raise failures[key]
            if link is None:
                raise TopicClosedError("the partition was closed a moment ago")
            self._gaps.check(key, stamp, link.topic)
            if header.transactional and pending.transactional_id is None:
                raise RefusedError(
                    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch needs a transactional id"
                )
            self._recheck(link)
            if link.keyed:
                check_keys(records or b"", link.part.local)
            now_ms = session.clock.wall_ms()
            check_times(records or b"", header, link.times, now_ms)
            append_ms = now_ms if link.times.appended else None
            outgoing = outgoing_of(records or b"", header, append_ms)
            if link.delays:
                outgoing = session.services.delaying.heeded(
                    outgoing, now_ms, header, behind_ms=clients_behind_ms(session.clock)
                )
        except WeirError as failure:
            self._refuse(part, failure, key, pending)
            self._gaps.note(key, stamp)
            return
        if append_ms is not None:
            part.log_append_time_ms = append_ms
        pending.left += 1
        part.error_code = Code.REQUEST_TIMED_OUT  # the response if the batch is not stored in time
        self.senders[link] = None
        link.producer.publish(outgoing).add_done_callback(partial(self._stored, pending, part, link, stamp))

    def _recheck(self, link: PartitionLink) -> None:
        """Check grants and configs again if they have changed since the link was last used."""
        services = self._session.services
        if link.access_revision != services.authoriser.revision:
            try:
                services.guard.check(self._session.role, link.part, Action.PRODUCE)
            except NotAuthorisedError:
                self._drop(link)
                raise
            link.access_revision = services.authoriser.revision
        if link.topics_revision != services.registry.topics.revision:
            link.topics_revision = services.registry.topics.revision
            record = services.registry.topics.find(link.part)
            if record is None or record.deleting:
                self._drop(link)
                raise TopicNotFoundError(f"topic {link.part} was deleted")
            link.times = times_of(record.properties)
            policies = services.registry.policies(link.part)
            compaction = policies.log_compaction
            link.delays = bool(policies.delayed_delivery)
            link.keyed = compaction is not None and compaction.cleanup.compacts

    # --- results -----------------------------------------------------------------------------------------

    def _stored(
        self,
        pending: _Pending,
        part: _PartResponse,
        link: PartitionLink,
        stamp: Stamp | None,
        done: "asyncio.Future[Receipt]",
    ) -> None:
        failure = asyncio.CancelledError() if done.cancelled() else done.exception()
        if failure is not None:
            if not isinstance(failure, _TOPIC_KNOWS):
                self._gaps.note(link.key, stamp)
            failure = self._gaps.explained(link.key, stamp, failure)
        if pending.answered:
            return  # the request timed out
        if failure is None:
            receipt = done.result()
            part.error_code = Code.NONE
            part.base_offset = receipt.offset
            part.log_start_offset = link.topic.start_offset
        else:
            self._refuse(part, failure, link.key, pending)
            log.info("a batch for %s was not stored: %s", link.part, failure)
            if part.error_code == Code.NOT_LEADER_OR_FOLLOWER:
                self._drop(link)
        self._count_down(pending)

    def _refuse(self, part: _PartResponse, failure: BaseException, key: Key, pending: _Pending) -> None:
        tell_refusal(self._session, part, failure, key=key, version=pending.version, response=pending.response)

    def _count_down(self, pending: _Pending) -> None:
        pending.left -= 1
        if not pending.left:
            self._finish(pending)

    def _finish(self, pending: _Pending) -> None:
        pending.answered = True
        self._pending.pop(pending, None)
        if not self._pending:
            self._idle.wake()
        if pending.acks != 0:
            pending.answer(pending.response)
            return
        pending.answer(None)
        failed = next(
            (p.error_message for t in pending.response.responses for p in t.partition_responses if p.error_code),
            None,
        )
        if failed is not None:  # with acks=0, closing the connection is the only signal to refresh metadata
            self._session.end(TopicNotFoundError(f"a batch without acknowledgement was not stored: {failed}"))

    def expire(self, now: float) -> None:
        """Answer requests whose timeout has passed."""
        for pending in [each for each in self._pending if each.deadline <= now]:
            self._finish(pending)

    async def settled(self, timeout_s: float) -> None:
        """Wait until every published batch is stored or has failed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait_until(lambda: not self._pending)

    # --- producers ---------------------------------------------------------------------------------------

    async def _open(self, key: Key) -> None:
        services, session = self._session.services, self._session
        part = await services.catalog.look_known(self._session.role, *key)
        if len(self._links) >= session.limits.max_producers:
            raise TooManyError(f"a connection may produce to at most {session.limits.max_producers} partitions")
        topic = await services.broker.topic(part, role=session.role, create=False)
        producer = await topic.produce(
            ProducerRequest(role=session.role, properties={"client.id": session.client_id}, address=session.peer)
        )
        self._links[key] = PartitionLink(key, part, topic, producer)

    async def wait_capacity(self) -> None:
        """Wait for the producers that a backlog quota, a publish rate or memory throttles."""
        senders, self.senders = self.senders, {}
        for link in senders:
            try:
                await link.producer.wait_capacity()
            except WeirError:
                self._drop(link)

    def _forget_dead(self) -> None:
        """Drop links to topics that were deleted; new topics may have their names."""
        self._as_of = self._session.services.registry.topics.revision
        for link in list(self._links.values()):
            if not link.topic.alive:
                self._drop(link)

    def _drop(self, link: PartitionLink) -> None:
        """Close a producer; the next request for its partition opens another."""
        if self._links.get(link.key) is link:
            del self._links[link.key]
            self._session.tasks.spawn(link.producer.close(), "close")

    async def close(self) -> None:
        links, self._links = self._links, {}
        closing = [link.producer.close() for link in links.values()]
        for failed in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(failed, Exception):
                log.warning("a producer of %s did not close: %s", self._session.peer, failed)
