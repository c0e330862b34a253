"""Transcripts of producing: what is stored, what is refused, and what comes back when the broker fails."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.security.authentication import SecuritySettings
from weir.gateway.kafka.errors import Code
from weir.model.batch import BatchFormat, Stamp
from weir.model.errors import (
    MessageTooLargeError,
    OutOfOrderSequenceError,
    ProducerClosedError,
    QuotaExceededError,
    StaleEpochError,
)
from weir.model.policies import Cleanup, LogCompaction, Policies
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.testing.broker.fake import FakeTopic
from weir.testing.kafka.stage import Peer, Stage, batch_of, play
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.record_batch import parse_header
from weir.wire.kafka.records import Record, build_batch


@pytest.mark.parametrize("version", range(3, 13))
def test_a_batch_is_stored_as_it_came(version: int) -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        peer = await stage.peer()
        sent = batch_of(b"a", b"b", b"c")
        peer.produce("orders", sent, version=version)
        part = await peer.produced()
        assert (part.error_code, part.base_offset, part.log_append_time_ms) == (Code.NONE, 0, -1)
        (stored,) = topic.batches
        assert (bytes(stored.payload), stored.count, stored.format) == (sent, 3, BatchFormat.KAFKA)

    play(conversation)


@pytest.mark.parametrize("version", [3, 9, 11])
def test_a_producer_is_told_whose_batches_it_sends(version: int) -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        topic.held_back = True
        peer = await stage.peer()
        peer.produce("orders", batch_of(b"a", stamp=Stamp(7, 2, 41)), version=version)
        await stage.later(1)
        ((outgoing, _),) = topic.producers[0].waiting
        assert outgoing.stamp == Stamp(7, 2, 41)
        assert not outgoing.transactional

    play(conversation)


def damaged(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


REFUSED = {
    "nothing": (None, Code.INVALID_RECORD),
    "no batch": (b"", Code.INVALID_RECORD),
    "a damaged batch": (damaged(batch_of(b"a")), Code.CORRUPT_MESSAGE),
    "a cut batch": (batch_of(b"a")[:-1], Code.INVALID_RECORD),
    "two batches": (batch_of(b"a") + batch_of(b"b"), Code.INVALID_RECORD),
    "an old format": (batch_of(b"a")[:16] + b"\1" + batch_of(b"a")[17:], Code.INVALID_RECORD),
    "a format of the future": (batch_of(b"a")[:16] + b"\3" + batch_of(b"a")[17:], Code.CORRUPT_MESSAGE),
    "an offset of its own": (batch_of(b"a", base_offset=5), Code.INVALID_RECORD),
    "a large batch": (batch_of(bytes(20_000)), Code.MESSAGE_TOO_LARGE),
    "a marker": (batch_of(b"a", attributes=0x20), Code.INVALID_RECORD),
    "a transaction of nobody": (batch_of(b"a", attributes=0x10), Code.INVALID_RECORD),
}


@pytest.mark.parametrize("case", REFUSED)
def test_records_that_may_not_be_stored_are_refused_and_the_connection_goes_on(case: str) -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        peer = await stage.peer()
        batch, code = REFUSED[case]
        peer.produce("orders", batch)
        part = await peer.produced()
        assert (part.error_code, part.base_offset) == (code, -1)
        assert part.error_message
        assert topic.batches == []
        peer.produce("orders", batch_of(b"good"))
        assert (await peer.produced()).base_offset == 0

    play(conversation, max_batch_bytes=10_000)


def test_a_message_as_large_as_any_may_say_in_headers_where_it_was_copied_from() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        peer = await stage.peer()
        large = bytes(10_000)
        peer.produce("orders", batch_of(large, stamp=Stamp(7, 0, 0)))
        assert (await peer.produced()).error_code == Code.NONE
        for too_much in (
            batch_of(large, b"and more", stamp=Stamp(7, 0, 1)),
            batch_of(3 * large, stamp=Stamp(7, 0, 1)),
        ):
            peer.produce("orders", too_much)
            assert (await peer.produced()).error_code == Code.MESSAGE_TOO_LARGE

    play(conversation, max_batch_bytes=10_000)


def test_one_bad_partition_does_not_spoil_the_others() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=3)
        peer = await stage.peer()
        kind = m.ProduceRequest
        batches = [batch_of(b"a"), damaged(batch_of(b"b")), batch_of(b"c"), batch_of(b"d")]
        data = [kind.PartitionProduceData(index=at, records=batch) for at, batch in enumerate(batches)]
        topics = [
            kind.TopicProduceData(name="orders", partition_data=data),
            kind.TopicProduceData(name="nowhere", partition_data=data[:1]),
        ]
        answer = await peer.call(ApiKey.PRODUCE, 9, kind(acks=1, timeout_ms=1000, topic_data=topics))
        orders, nowhere = answer.responses
        codes = [part.error_code for part in orders.partition_responses]
        unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [Code.NONE, Code.CORRUPT_MESSAGE, Code.NONE, unknown]
        assert [part.error_code for part in nowhere.partition_responses] == [unknown]
        assert [len(stage.at(index=at).batches) for at in range(3)] == [1, 0, 1]

    play(conversation)


def test_a_level_of_acknowledgement_that_means_nothing_is_refused() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        peer = await stage.peer()
        peer.produce("orders", batch_of(b"a"), acks=2)
        assert (await peer.produced()).error_code == Code.INVALID_REQUIRED_ACKS

    play(conversation)


def test_a_client_that_wants_no_answer_gets_none_and_what_it_sent_is_stored() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        peer = await stage.peer()
        peer.produce("orders", batch_of(b"a"), acks=0)
        peer.produce("orders", batch_of(b"b"), acks=1)
        assert (await peer.produced()).base_offset == 1
        assert len(topic.batches) == 2

    play(conversation)


def test_what_a_client_sent_before_it_hung_up_is_stored() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        stage.broker.answering.clear()  # the producer takes a while to open
        peer = await stage.peer()
        peer.fetch(("orders", 0, 0), max_wait_ms=60_000)  # nobody waits for it any more, nor do those behind it
        for value in (b"a", b"b"):
            peer.produce("orders", batch_of(value), acks=0)
        peer.connection.close()
        await stage.later(1)
        stage.broker.answering.set()
        await stage.later(1)
        assert len(topic.batches) == 2
        assert (topic.producers, stage.server.sessions) == ([], [])

    play(conversation)


def test_a_client_that_wants_no_answer_learns_of_a_failure_by_the_end_of_its_connection() -> None:
    async def conversation(stage: Stage) -> None:
        peer = await stage.peer()
        peer.produce("nowhere", batch_of(b"a"), acks=0)
        assert await peer.hangs_up()

    play(conversation)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ProducerClosedError("gone"), Code.NOT_LEADER_OR_FOLLOWER),
        (OutOfOrderSequenceError("a gap"), Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (StaleEpochError("fenced"), Code.INVALID_PRODUCER_EPOCH),
        (MessageTooLargeError("too large"), Code.MESSAGE_TOO_LARGE),
        (QuotaExceededError("full"), Code.POLICY_VIOLATION),
    ],
)
def test_what_the_broker_could_not_store_is_answered_with_the_right_code(failure: Any, code: Code) -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        topic.held_back = True
        peer = await stage.peer()
        peer.produce("orders", batch_of(b"a"))
        await stage.later(1)
        topic.producers[0].store(failure)
        assert (await peer.produced()).error_code == code

    play(conversation)


def test_after_the_broker_closed_a_producer_the_next_request_opens_another() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        topic.held_back = True
        peer = await stage.peer()
        peer.produce("orders", batch_of(b"a"))
        await stage.later(1)
        (first,) = topic.producers
        first.store(ProducerClosedError("the topic moved"))
        await peer.produced()
        topic.held_back = False
        peer.produce("orders", batch_of(b"a"))
        assert (await peer.produced()).base_offset == 0
        assert first not in topic.producers
        assert len(topic.producers) == 1

    play(conversation)


def test_a_batch_that_is_not_stored_in_time_is_answered_so() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        topic.held_back = True
        peer = await stage.peer()
        peer.produce("orders", batch_of(b"a"))  # waits for 30 s
        await stage.later(20)
        assert not peer.frames
        assert (await peer.produced()).error_code == Code.REQUEST_TIMED_OUT
        topic.producers[0].store()  # too late for an answer
        topic.held_back = False
        peer.produce("orders", batch_of(b"b"))
        assert (await peer.produced()).base_offset == 1

    play(conversation)


def test_what_was_taken_is_stored_and_answered_when_the_server_closes() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        topic.held_back = True
        peer = await stage.peer()
        peer.produce("orders", batch_of(b"a"))
        await stage.later(1)
        stage.runtime.clock.call_later(1, topic.producers[0].store)
        await stage.server.close()
        assert (await peer.produced()).base_offset == 0
        assert await peer.hangs_up()
        assert topic.producers == []

    play(conversation)


def test_the_producers_of_a_connection_go_with_it() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        peer = await stage.peer()
        peer.produce("orders", batch_of(b"a"))
        await peer.produced()
        assert topic.producers[0].request.properties == {"client.id": "peer"}
        peer.connection.close()
        await stage.later(1)
        assert topic.producers == []

    play(conversation)


def test_a_topic_that_stamps_its_records_gives_them_the_brokers_time() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        await stage.registry.change_properties(
            topic.name, lambda _: {"kafka.message.timestamp.type": "LogAppendTime"}
        )
        peer = await stage.peer()
        peer.produce("orders", batch_of(b"a", b"b", timestamps=[1, 2]))
        part = await peer.produced()
        header = parse_header(topic.batches[0].payload)
        assert part.log_append_time_ms == header.max_timestamp > 1_000_000
        assert header.log_append_time

    play(conversation)


def test_a_compacted_topic_takes_no_record_without_a_key() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        compacted = Policies(log_compaction=LogCompaction(Cleanup.COMPACT))
        await stage.registry.change_policies(topic.name, lambda _: compacted)
        peer = await stage.peer()
        peer.produce("orders", batch_of(b"a"))
        assert (await peer.produced()).error_code == Code.INVALID_RECORD
        peer.produce("orders", build_batch([Record(0, 1, b"key", None, [])]))
        assert (await peer.produced()).error_code == Code.NONE

    play(conversation)


def test_a_grant_that_is_taken_back_holds_for_the_next_request() -> None:
    name = TopicName.parse("orders")

    async def conversation(stage: Stage) -> None:
        await stage.topic()
        await stage.registry.grants.grant(name, "anonymous", (Action.PRODUCE,))
        peer: Peer = await stage.peer()
        peer.produce("orders", batch_of(b"a"))
        assert (await peer.produced()).error_code == Code.NONE
        await stage.registry.grants.revoke(name, "anonymous")
        peer.produce("orders", batch_of(b"b"))
        assert (await peer.produced()).error_code == Code.TOPIC_AUTHORIZATION_FAILED
        assert len(stage.at().batches) == 1

    play(conversation, security=SecuritySettings(authorisation=True))


def test_a_producer_whose_topic_was_deleted_is_told_that_there_is_none() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        peer = await stage.peer()
        peer.produce("orders", batch_of(b"a"))
        assert (await peer.produced()).error_code == Code.NONE
        await stage.registry.topics.delete(await stage.registry.topics.doom(TopicName.parse("orders")))
        peer.produce("orders", batch_of(b"b"))
        assert (await peer.produced()).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION

    play(conversation)


def test_topics_of_requests_that_wait_are_loaded_while_the_first_waits_for_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=4)
        found = stage.broker.topic

        async def slow(name: TopicName, *, role: str, create: bool = True) -> FakeTopic:
            await stage.later(1)  # as long as it takes to recover what a dead broker left
            return await found(name, role=role, create=create)

        monkeypatch.setattr(stage.broker, "topic", shared_loads(slow))
        peer = await stage.peer()
        before = stage.runtime.clock.monotonic()
        for index in range(3):
            peer.produce("orders", batch_of(b"a"), index=index)
        await stage.later(0.5)
        peer.produce("orders", batch_of(b"b"), index=3)
        peer.produce("orders", damaged(batch_of(b"c")), index=4)
        told = [(await peer.produced()).error_code for _ in range(5)]
        assert told == [Code.NONE] * 4 + [Code.CORRUPT_MESSAGE]
        assert stage.runtime.clock.monotonic() - before < 2  # of virtual time: it would be four

    play(conversation)


def shared_loads(load: Callable[..., Any]) -> Callable[..., Any]:
    """As the broker does it: those who want a topic at the same time share one load, and it stays loaded."""
    loads: dict[TopicName, asyncio.Future[FakeTopic]] = {}

    async def topic(name: TopicName, *, role: str, create: bool = True) -> FakeTopic:
        if name not in loads:
            loads[name] = asyncio.ensure_future(load(name, role=role, create=create))
        return await asyncio.shield(loads[name])

    return topic
