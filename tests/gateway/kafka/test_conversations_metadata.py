"""Transcripts of looking around: topics by name and id, creation by being named, offsets and moments."""

from typing import Any

import pytest

from weir.broker.api.producers import Outgoing
from weir.broker.security.authentication import SecuritySettings
from weir.gateway.kafka.admin_requests import NOT_ASKED, Operation
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.settings import KafkaSettings
from weir.model.batch import BatchFormat
from weir.model.policies import AutoTopicCreation, Policies, Retention
from weir.model.registry import Action
from weir.model.topics import NamespaceName, TopicName
from weir.testing.broker.fake import FakeTopic
from weir.testing.kafka.stage import Peer, Stage, batch_of, play
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey


async def everything(peer: Peer, version: int = 9, **more: Any) -> Any:
    return await peer.call(ApiKey.METADATA, version, m.MetadataRequest(topics=None if version else [], **more))


def names(answer: Any) -> list[str]:
    return [topic.name for topic in answer.topics]


@pytest.mark.parametrize("version", range(14))
def test_a_topic_is_described_with_its_partitions_and_its_broker(version: int) -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=3)
        answer = await (await stage.peer()).metadata("orders", version=version)
        assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [
            (7, "kafka.example", 19)
        ]
        (topic,) = answer.topics
        assert (topic.error_code, topic.name) == (Code.NONE, "orders")
        assert [(part.partition_index, part.leader_id) for part in topic.partitions] == [(0, 7), (1, 7), (2, 7)]
        if version >= 10:
            assert topic.topic_id != bytes(16)

    settings = KafkaSettings(node_id=7, advertised_host="kafka.example", advertised_port=19)
    play(conversation, settings=settings)


@pytest.mark.parametrize("version", [0, 1, 9, 12])
def test_all_topics_are_listed_that_have_a_name_in_kafka(version: int) -> None:
    async def conversation(stage: Stage) -> None:
        await stage.registry.namespaces.create(NamespaceName("public", "more"))
        made = ("orders", "public/more/events", "with space", "non-persistent://public/default/fleeting")
        for name in made:
            await stage.registry.topics.create(TopicName.parse(name))
        answer = await everything(await stage.peer(), version)
        assert names(answer) == ["orders", "public..more..events"]
        assert [len(topic.partitions) for topic in answer.topics] == [1, 1]

    play(conversation)


def test_no_topics_are_listed_for_a_client_that_asks_for_none() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        answer = await (await stage.peer()).metadata()
        assert (answer.topics, len(answer.brokers)) == ([], 1)

    play(conversation)


@pytest.mark.parametrize("name", ["public..more..events", "public/more/events"])
def test_a_topic_of_another_namespace_is_named_with_it(name: str) -> None:
    async def conversation(stage: Stage) -> None:
        await stage.registry.namespaces.create(NamespaceName("public", "more"))
        await stage.registry.topics.create(TopicName.parse("public/more/events"), partitions=2)
        (topic,) = (await (await stage.peer()).metadata(name)).topics
        assert (topic.error_code, topic.name, len(topic.partitions)) == (Code.NONE, name, 2)

    play(conversation)


def test_a_topic_that_is_named_comes_to_be_and_keeps_its_messages_for_a_week() -> None:
    async def conversation(stage: Stage) -> None:
        (topic,) = (await (await stage.peer()).metadata("new")).topics
        assert (topic.error_code, len(topic.partitions)) == (Code.NONE, 1)
        record = await stage.registry.topics.get(TopicName.parse("new"))
        assert record.partitions == 1
        assert stage.registry.policies(record.name).retention == Retention(7 * 24 * 60, -1)

    play(conversation)


def test_a_namespace_says_with_how_many_partitions_topics_come_to_be() -> None:
    async def conversation(stage: Stage) -> None:
        (topic,) = (await (await stage.peer()).metadata("new")).topics
        assert len(topic.partitions) == 5

    play(conversation, policies=Policies(auto_topic_creation=AutoTopicCreation(True, 5)))


@pytest.mark.parametrize("forbidden_by", ["the client", "the namespace"])
def test_a_topic_does_not_come_to_be_where_that_is_forbidden(forbidden_by: str) -> None:
    async def conversation(stage: Stage) -> None:
        asked = [m.MetadataRequest.MetadataRequestTopic(name="new")]
        allow = forbidden_by != "the client"
        request = m.MetadataRequest(topics=asked, allow_auto_topic_creation=allow)
        (topic,) = (await (await stage.peer()).call(ApiKey.METADATA, 9, request)).topics
        assert (topic.error_code, topic.name) == (Code.UNKNOWN_TOPIC_OR_PARTITION, "new")
        assert await stage.registry.topics.count() == 0

    allowed = AutoTopicCreation(allowed=forbidden_by == "the client")
    play(conversation, policies=Policies(auto_topic_creation=allowed))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("with space", Code.INVALID_TOPIC_EXCEPTION),
        ("", Code.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, Code.INVALID_TOPIC_EXCEPTION),
        ("orders-partition-3", Code.INVALID_TOPIC_EXCEPTION),
        ("nobody..nowhere..nothing", Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("weir..system..coordinator", Code.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_a_name_that_cannot_be_is_refused(name: str, code: Code) -> None:
    async def conversation(stage: Stage) -> None:
        (topic,) = (await (await stage.peer()).metadata(name)).topics
        assert topic.error_code == code

    play(conversation)


def test_a_topic_made_anew_under_its_name_has_another_id() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        peer = await stage.peer()
        before = (await peer.metadata("orders", version=12)).topics[0].topic_id
        await stage.registry.delete_topic(topic.name.base)
        await stage.later(1)
        await stage.registry.topics.create(topic.name.base, partitions=1)
        after = (await peer.metadata("orders", version=12)).topics[0].topic_id
        assert before != after
        asked = [m.MetadataRequest.MetadataRequestTopic(name=None, topic_id=each) for each in (before, after)]
        gone, found = (await peer.call(ApiKey.METADATA, 12, m.MetadataRequest(topics=asked))).topics
        assert (gone.error_code, found.error_code) == (Code.UNKNOWN_TOPIC_ID, Code.NONE)
        assert found.name == "orders"

    play(conversation)


def test_a_role_sees_only_what_it_may_and_is_told_what_it_may_do() -> None:
    async def conversation(stage: Stage) -> None:
        for name in ("orders", "secrets"):
            await stage.registry.topics.create(TopicName.parse(name))
        await stage.registry.grants.grant(TopicName.parse("orders"), "anonymous", (Action.CONSUME,))
        peer = await stage.peer()
        more = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
        answer = await everything(peer, 10, include_topic_authorized_operations=True)
        assert names(answer) == ["orders"]
        bits = 1 << Operation.READ | 1 << Operation.DESCRIBE
        assert answer.topics[0].topic_authorized_operations == bits
        assert (await everything(peer, 9)).topics[0].topic_authorized_operations == NOT_ASKED
        (cluster,) = [await everything(peer, 9, **more)]
        assert cluster.cluster_authorized_operations == 1 << Operation.IDEMPOTENT_WRITE
        (secrets,) = (await peer.metadata("secrets")).topics
        assert secrets.error_code == Code.TOPIC_AUTHORIZATION_FAILED
        (unknown,) = (await peer.metadata("unknown")).topics
        assert unknown.error_code == Code.TOPIC_AUTHORIZATION_FAILED

    play(conversation, security=SecuritySettings(authorisation=True))


# --- offsets --------------------------------------------------------------------------------------------


async def offset(peer: Peer, moment: int, *, version: int = 7) -> tuple[int, int]:
    """The offset and the time that partition 0 answers with."""
    kind = m.ListOffsetsRequest
    part = kind.ListOffsetsPartition(partition_index=0, timestamp=moment)
    topic = kind.ListOffsetsTopic(name="orders", partitions=[part])
    request = kind(replica_id=-1, topics=[topic])
    answer = await peer.call(ApiKey.LIST_OFFSETS, version, request)
    found = answer.topics[0].partitions[0]
    assert found.error_code == Code.NONE, Code(found.error_code)
    return found.offset, found.timestamp


def at_times(topic: FakeTopic, *times: int) -> None:
    batch = batch_of(*(b"x" for _ in times), timestamps=list(times))
    topic.append(Outgoing(batch, len(times), BatchFormat.KAFKA))


@pytest.mark.parametrize("version", range(1, 12))
def test_beginning_and_end_are_told(version: int) -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        at_times(topic, 10, 20)
        at_times(topic, 30)
        topic.start_offset = 1
        peer = await stage.peer()
        assert await offset(peer, -2, version=version) == (1, -1)
        assert await offset(peer, -1, version=version) == (3, -1)

    play(conversation)


def test_a_moment_is_found_by_the_records_own_times_in_whatever_order_they_are() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        at_times(topic, 10, 50, 20)
        at_times(topic, 30, 40)
        peer = await stage.peer()
        assert await offset(peer, 0) == (0, 10)
        assert await offset(peer, 11) == (1, 50)
        assert await offset(peer, 51) == (-1, -1)
        assert await offset(peer, -3) == (1, 50)
        at_times(topic, 60, 5)  # what was appended since is known, too
        assert await offset(peer, 51) == (5, 60)
        assert await offset(peer, -3) == (5, 60)

    play(conversation)


def test_messages_of_another_protocol_have_times_too() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        at_times(topic, 10)
        topic.append(Outgoing(b"not to be read", 1, BatchFormat.PULSAR))  # stands for itself, at its append time
        assert await offset(await stage.peer(), 11) == (1, topic.batches[-1].append_ms)

    play(conversation)


def test_nothing_that_was_trimmed_is_found() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        at_times(topic, 10, 20, 30)
        topic.start_offset = 2
        peer = await stage.peer()
        assert await offset(peer, 0) == (2, 30)
        empty = stage.at(index=0)
        empty.batches, empty.start_offset = [], 0
        assert await offset(peer, -1) == (0, -1)

    play(conversation)


def test_what_does_not_exist_or_may_not_be_read_has_no_offsets() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        peer = await stage.peer()
        kind = m.ListOffsetsRequest
        parts = [kind.ListOffsetsPartition(partition_index=1, timestamp=-1)]
        topics = [kind.ListOffsetsTopic(name=name, partitions=parts) for name in ("orders", "nowhere", "a b")]
        answer = await peer.call(ApiKey.LIST_OFFSETS, 7, kind(topics=topics))
        codes = [topic.partitions[0].error_code for topic in answer.topics]
        unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [unknown, unknown, Code.INVALID_TOPIC_EXCEPTION]

    play(conversation)
