"""Transcripts of administration: what takes too long, what is not allowed, what nobody can mean."""

from typing import Any

import pytest

from weir.broker.security.authentication import SecuritySettings
from weir.gateway.kafka.errors import Code
from weir.model.topics import TopicName
from weir.testing.kafka.stage import Stage, play
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey

LOCKED = SecuritySettings(authorisation=True, superusers=("root",))


def new_topic(name: str = "orders", **more: Any) -> m.CreateTopicsRequest:
    topic = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    return m.CreateTopicsRequest(topics=[topic], timeout_ms=5000, **more)


@pytest.mark.parametrize(("timeout_ms", "waits"), [(2000, 2), (0, 0), (-1, 0)])
def test_a_deletion_that_takes_longer_than_the_client_waits_is_told_so_and_goes_on(
    timeout_ms: int, waits: int
) -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        peer = await stage.peer()
        stage.broker.answering.clear()
        begun = stage.runtime.clock.monotonic()
        request = m.DeleteTopicsRequest(topic_names=["orders"], timeout_ms=timeout_ms)
        (result,) = (await peer.call(ApiKey.DELETE_TOPICS, 5, request)).responses
        assert result.error_code == Code.REQUEST_TIMED_OUT
        assert waits <= stage.runtime.clock.monotonic() - begun < waits + 1
        stage.broker.answering.set()
        (result,) = (
            await peer.call(
                ApiKey.DELETE_TOPICS, 5, m.DeleteTopicsRequest(topic_names=["orders"], timeout_ms=2000)
            )
        ).responses
        assert result.error_code == Code.NONE

    play(conversation)


def test_a_creation_goes_to_its_end_although_the_client_does_not_wait() -> None:
    async def conversation(stage: Stage) -> None:
        peer = await stage.peer()
        request = new_topic()
        request.timeout_ms = 0
        (result,) = (await peer.call(ApiKey.CREATE_TOPICS, 7, request)).topics
        assert result.error_code in (Code.NONE, Code.REQUEST_TIMED_OUT)
        await stage.later(1)
        assert await stage.registry.topics.look(TopicName.parse("orders")) is not None

    play(conversation)


def test_a_name_whose_deletion_was_cut_short_is_free_again() -> None:
    async def conversation(stage: Stage) -> None:
        name = TopicName.parse("orders")
        await stage.topic()
        doomed = await stage.registry.doom_topic(name)

        async def delete(name: TopicName, *, force: bool = False) -> None:
            await stage.registry.forget_topic(doomed)

        stage.broker.delete = delete  # type: ignore[method-assign]
        (result,) = (await (await stage.peer()).call(ApiKey.CREATE_TOPICS, 7, new_topic())).topics
        assert result.error_code == Code.NONE
        assert not (await stage.registry.topics.get(name)).deleting

    play(conversation)


def test_who_administers_nothing_is_told_so_by_every_call_and_changes_nothing() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        peer = await stage.peer()
        denied = Code.TOPIC_AUTHORIZATION_FAILED
        (made,) = (await peer.call(ApiKey.CREATE_TOPICS, 7, new_topic("other"))).topics
        (gone,) = (
            await peer.call(ApiKey.DELETE_TOPICS, 5, m.DeleteTopicsRequest(topic_names=["orders"], timeout_ms=1))
        ).responses
        grow = m.CreatePartitionsRequest(
            topics=[m.CreatePartitionsRequest.CreatePartitionsTopic(name="orders", count=9)], timeout_ms=1000
        )
        (grown,) = (await peer.call(ApiKey.CREATE_PARTITIONS, 3, grow)).results
        kind = m.IncrementalAlterConfigsRequest
        change = kind(
            resources=[
                kind.AlterConfigsResource(
                    resource_type=2,
                    resource_name="orders",
                    configs=[kind.AlterableConfig(name="retention.ms", config_operation=0, value="1")],
                )
            ]
        )
        (altered,) = (await peer.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, change)).responses
        resource = m.DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name="orders")
        (shown,) = (
            await peer.call(ApiKey.DESCRIBE_CONFIGS, 4, m.DescribeConfigsRequest(resources=[resource]))
        ).results
        ends = m.OffsetForLeaderEpochRequest(
            topics=[
                m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                    topic="orders", partitions=[m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition()]
                )
            ]
        )
        ((end,),) = [
            topic.partitions for topic in (await peer.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, ends)).topics
        ]
        answers = [made, gone, grown, altered, shown, end]
        assert [answer.error_code for answer in answers] == [denied] * len(answers)
        dirs = await peer.call(ApiKey.DESCRIBE_LOG_DIRS, 4, m.DescribeLogDirsRequest(topics=None))
        assert (dirs.error_code, dirs.results) == (Code.CLUSTER_AUTHORIZATION_FAILED, [])
        record = await stage.registry.topics.get(TopicName.parse("orders"))
        assert (record.partitions, record.deleting, record.properties) == (1, False, {})

    play(conversation, security=LOCKED)


def test_a_config_of_nothing_that_has_configs_is_refused() -> None:
    async def conversation(stage: Stage) -> None:
        peer = await stage.peer()
        kind = m.AlterConfigsRequest
        resources = [
            kind.AlterConfigsResource(resource_type=2, resource_name="unknown"),
            kind.AlterConfigsResource(resource_type=4, resource_name="0"),
            kind.AlterConfigsResource(resource_type=99, resource_name="x"),
            kind.AlterConfigsResource(resource_type=2, resource_name="twice"),
            kind.AlterConfigsResource(resource_type=2, resource_name="twice"),
        ]
        answer = await peer.call(ApiKey.ALTER_CONFIGS, 2, kind(resources=resources))
        assert [(each.resource_type, each.resource_name) for each in answer.responses] == [
            (each.resource_type, each.resource_name) for each in resources
        ]
        assert [each.error_code for each in answer.responses] == [
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            Code.INVALID_REQUEST,
            Code.INVALID_REQUEST,
            Code.INVALID_REQUEST,
            Code.INVALID_REQUEST,
        ]

    play(conversation)


def test_a_request_that_names_far_too_much_is_refused_whole() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        resource = m.DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name="orders")
        many = m.DescribeConfigsRequest(resources=[resource] * 10_001)
        peer = await stage.peer()
        peer.ask(ApiKey.DESCRIBE_CONFIGS, 4, many)
        assert await peer.hangs_up()
        deletion = m.DeleteTopicsRequest(topic_names=[f"t{n}" for n in range(10_001)], timeout_ms=1000)
        peer = await stage.peer()
        peer.ask(ApiKey.DELETE_TOPICS, 5, deletion)
        assert await peer.hangs_up()
        assert (await (await stage.peer()).metadata("orders")).topics[0].error_code == Code.NONE

    play(conversation)
