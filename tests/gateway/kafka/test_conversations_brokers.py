"""Transcripts of a broker that is one of several: who is where, who leads what, and in which epoch."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from weir.broker.api.broker import Owner
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.metadata import Nodes, parse_address
from weir.gateway.kafka.settings import KafkaSettings
from weir.model.registry import BrokerInfo, TopicRecord
from weir.model.topics import TopicName
from weir.testing.broker.fake import FakeBroker
from weir.testing.kafka.stage import Peer, Stage, batch_of, begin, go_on, play, store, told
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.record_batch import parse_header, split_batches

_PLAIN = {"kafka": "one.example:9092", "kafka_tls": "one.example:9093"}
_ONE = BrokerInfo("one", "i", _PLAIN, node_id=1, rack="east")
_TLS_ONLY = BrokerInfo("two", "i", {"kafka_tls": "[::1]:9093"}, node_id=2)


def _elsewhere(stage: Stage, index: int, info: BrokerInfo = _ONE, epoch: int = 5) -> None:
    """A partition that another broker leads."""
    stage.broker.others = [_ONE, _TLS_ONLY]
    name = TopicName.parse("orders").at(index)
    stage.broker.elsewhere[name] = Owner(False, info.listeners, info.broker_id, info.node_id, epoch)


@pytest.mark.parametrize("version", range(14))
def test_all_brokers_are_told_and_who_leads_each_partition(version: int) -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=3)
        _elsewhere(stage, 1)
        _elsewhere(stage, 2, _TLS_ONLY)
        answer = await (await stage.peer()).metadata("orders", version=version)
        found = [(broker.node_id, broker.host, broker.port) for broker in answer.brokers]
        assert found == [(0, "server", 9092), (1, "one.example", 9092)]
        parts = answer.topics[0].partitions
        assert [part.leader_id for part in parts] == [0, 1, -1]
        unreachable = Code.LISTENER_NOT_FOUND if version >= 6 else Code.LEADER_NOT_AVAILABLE
        assert [part.error_code for part in parts] == [Code.NONE, Code.NONE, unreachable]
        assert [(part.replica_nodes, part.isr_nodes) for part in parts] == [([0], [0]), ([1], [1]), ([2], [2])]
        if version >= 1:
            assert [broker.rack for broker in answer.brokers] == [None, "east"]
            assert answer.controller_id == 0
        if version >= 7:
            assert [part.leader_epoch for part in parts] == [0, 5, 5]

    play(conversation)


def test_a_broker_that_has_just_gone_is_told_of_and_leads_nothing() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        stage.broker.others, stage.broker.former = [], [_ONE, _TLS_ONLY]
        peer = await stage.peer()
        answer = await peer.metadata("orders")
        assert [(broker.node_id, broker.host) for broker in answer.brokers] == [(0, "server"), (1, "one.example")]
        assert answer.controller_id == 0
        there = await peer.call(ApiKey.DESCRIBE_CLUSTER, 0, m.DescribeClusterRequest())
        assert [broker.broker_id for broker in there.brokers] == [0]
        stage.broker.others = [replace(_ONE, listeners={"kafka": "new.example:9092"})]  # started again elsewhere
        answer = await peer.metadata("orders")
        assert [(broker.node_id, broker.host) for broker in answer.brokers] == [(0, "server"), (1, "new.example")]

    play(conversation)


def test_a_client_is_told_of_the_listeners_that_are_like_its_own() -> None:
    async def conversation(stage: Stage) -> None:
        stage.broker.others = [_ONE, _TLS_ONLY]
        answer = await (await stage.peer()).call(ApiKey.DESCRIBE_CLUSTER, 0, m.DescribeClusterRequest())
        found = [(broker.broker_id, broker.host, broker.port, broker.rack) for broker in answer.brokers]
        assert found == [
            (1, "one.example", 9093, "east"),
            (2, "::1", 9093, None),
            (9, "server", 9092, None),
        ]
        assert answer.controller_id == 1

    play(conversation, settings=KafkaSettings(listener="kafka_tls", node_id=9))


@pytest.mark.parametrize(("leader", "controller"), [("one", 1), ("fake", 0), ("two", 0), ("gone", 0), ("", 0)])
def test_the_controller_is_the_elected_leader_or_another_that_all_name(leader: str, controller: int) -> None:
    broker = FakeBroker()
    broker.others = [_ONE, _TLS_ONLY]
    balance: Any = SimpleNamespace(leader=lambda: leader)
    nodes = Nodes(broker, node_id=0, listener="kafka", advertised=lambda: ("h", 1), balance=balance)
    assert nodes.controller(nodes.all()) == controller


def test_a_request_that_names_many_partitions_of_unknown_topics_asks_once_for_each_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def conversation(stage: Stage) -> None:
        asked: list[str] = []
        look = stage.registry.topics.look

        async def counted(name: TopicName) -> TopicRecord | None:
            asked.append(name.local)
            return await look(name)

        monkeypatch.setattr(stage.registry.topics, "look", counted)
        await stage.topic(partitions=2)
        peer = await stage.peer()
        wanted = [(name, index, 0) for name in ("orders", "unknown") for index in range(40)]
        peer.fetch(*wanted, session_epoch=-1)
        answer = await peer.hear()
        codes = [part.error_code for topic in answer.responses for part in topic.partitions]
        assert codes == [Code.NONE] * 2 + [Code.UNKNOWN_TOPIC_OR_PARTITION] * 78
        listed = m.ListOffsetsRequest.ListOffsetsPartition
        await peer.call(
            ApiKey.LIST_OFFSETS,
            5,
            m.ListOffsetsRequest(
                topics=[
                    m.ListOffsetsRequest.ListOffsetsTopic(
                        name="unknown",
                        partitions=[listed(partition_index=index, timestamp=-1) for index in range(9)],
                    )
                ]
            ),
        )
        assert asked == ["orders", "unknown", "unknown"]

    play(conversation)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h:1", ("h", 1)),
        ("pulsar://h:65535", ("h", 65535)),
        ("[::1]:2", ("::1", 2)),
        ("", None),
        ("h", None),
        (":1", None),
        ("h:0", None),
        ("h:65536", None),
        ("h:x", None),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, found: tuple[str, int] | None) -> None:
    assert parse_address(text) == found


@pytest.mark.parametrize("version", [9, 10, 12])
def test_a_producer_at_the_wrong_broker_is_told_who_leads(version: int) -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=2)
        _elsewhere(stage, 0)
        peer = await stage.peer()
        peer.produce("orders", batch_of(b"a"), version=version)
        answer = await peer.hear()
        ((part,),) = [topic.partition_responses for topic in answer.responses]
        assert part.error_code == Code.NOT_LEADER_OR_FOLLOWER
        if version >= 10:
            assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (1, 5)
            (node,) = answer.node_endpoints
            assert (node.node_id, node.host, node.port, node.rack) == (1, "one.example", 9092, None)
        peer.produce("orders", batch_of(b"a"), index=1, version=version)
        assert (await peer.produced()).error_code == Code.NONE

    play(conversation)


@pytest.mark.parametrize("version", [11, 12])
def test_a_consumer_at_the_wrong_broker_is_told_who_leads(version: int) -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=2)
        _elsewhere(stage, 0)
        peer = await stage.peer()
        peer.fetch(("orders", 0, 0), ("orders", 1, 0), version=version, max_wait_ms=60_000)
        first, second = (await peer.hear()).responses[0].partitions
        assert (first.error_code, second.error_code) == (Code.NOT_LEADER_OR_FOLLOWER, Code.NONE)
        if version >= 12:
            assert (first.current_leader.leader_id, first.current_leader.leader_epoch) == (1, 5)

    play(conversation)


def test_the_newest_fetches_are_told_where_the_leader_is() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        _elsewhere(stage, 0)
        peer = await stage.peer()
        topic_id = (await peer.metadata("orders", version=12)).topics[0].topic_id
        answer = await _fetch_by_id(peer, topic_id)
        (part,) = answer.responses[0].partitions
        assert (part.error_code, part.current_leader.leader_id) == (Code.NOT_LEADER_OR_FOLLOWER, 1)
        assert [(node.node_id, node.host, node.port) for node in answer.node_endpoints] == [
            (1, "one.example", 9092)
        ]

    play(conversation)


async def _fetch_by_id(peer: Peer, topic_id: bytes, epoch: int = -1) -> Any:
    part = m.FetchRequest.FetchPartition(partition=0, partition_max_bytes=2**20, current_leader_epoch=epoch)
    topic = m.FetchRequest.FetchTopic(topic_id=topic_id, partitions=[part])
    request = m.FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=2**20, session_epoch=-1, topics=[topic])
    return await peer.call(ApiKey.FETCH, 16, request)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (-1, 0),
        (4, 0),
        (3, Code.FENCED_LEADER_EPOCH),
        (0, Code.FENCED_LEADER_EPOCH),
        (5, Code.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_a_client_must_mean_the_epoch_in_which_the_partition_is_led(said: int, code: int) -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        topic.leader_epoch = 4
        stage.broker.elsewhere = {}
        store(topic, b"a")
        peer = await stage.peer()
        topic_id = (await peer.metadata("orders", version=12)).topics[0].topic_id
        fetched = (await _fetch_by_id(peer, topic_id, said)).responses[0].partitions[0]
        assert fetched.error_code == code
        wanted = m.ListOffsetsRequest.ListOffsetsPartition(
            partition_index=0, current_leader_epoch=said, timestamp=-1
        )
        asked = m.ListOffsetsRequest.ListOffsetsTopic(name="orders", partitions=[wanted])
        listed = await peer.call(ApiKey.LIST_OFFSETS, 7, m.ListOffsetsRequest(topics=[asked]))
        assert listed.topics[0].partitions[0].error_code == code
        ended = await _epoch_end(peer, 4, said)
        assert ended.error_code == code
        if not code:
            assert (ended.leader_epoch, ended.end_offset) == (4, 1)
            assert listed.topics[0].partitions[0].leader_epoch == 4
            (batch,) = split_batches(fetched.records)
            assert parse_header(batch).leader_epoch == 4

    play(conversation)


async def _epoch_end(peer: Peer, epoch: int, said: int = -1) -> Any:
    part = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
        partition=0, current_leader_epoch=said, leader_epoch=epoch
    )
    topic = m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="orders", partitions=[part])
    answer = await peer.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, m.OffsetForLeaderEpochRequest(topics=[topic]))
    return answer.topics[0].partitions[0]


def test_a_fetch_that_waits_is_answered_when_its_partition_moves_away_and_its_session_goes_on() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic(partitions=2)
        peer = await stage.peer()
        number = (await begin(peer, ("orders", 0, 0), ("orders", 1, 0))).session_id
        peer.fetch(session_id=number, session_epoch=1, max_wait_ms=600_000)
        await stage.later(1)
        began = stage.runtime.clock.monotonic()
        _elsewhere(stage, 0)
        topic.changed()  # as every topic does that dies
        answer = await peer.hear()
        assert stage.runtime.clock.monotonic() - began < 1
        ((part,),) = [topic.partitions for topic in answer.responses]
        assert (part.partition_index, part.error_code) == (0, Code.NOT_LEADER_OR_FOLLOWER)
        store(stage.at(index=1), b"b")
        assert told(await go_on(peer, number, 2)) == {0: [], 1: [(0, b"b")]}
        stage.broker.elsewhere = {}
        store(topic, b"a")
        assert told(await go_on(peer, number, 3, ("orders", 1, 1))) == {0: [(0, b"a")]}

    play(conversation)


def test_a_topic_that_another_broker_has_just_made_is_found() -> None:
    async def conversation(stage: Stage) -> None:
        records = stage.registry.topics._records
        peer = await stage.peer()
        await stage.topic()
        for wanted in ("metadata", "produce", "offsets"):
            records._items.clear()  # nobody has asked for it here
            records._idle.clear()
            stage.registry.topics.revision += 1
            if wanted == "metadata":
                asked = [m.MetadataRequest.MetadataRequestTopic(name="orders")]
                request = m.MetadataRequest(topics=asked, allow_auto_topic_creation=False)
                assert (await peer.call(ApiKey.METADATA, 9, request)).topics[0].error_code == Code.NONE
            elif wanted == "produce":
                peer.produce("orders", batch_of(b"a"))
                assert (await peer.produced()).error_code == Code.NONE
            else:
                assert (await _epoch_end(peer, 0)).error_code == Code.NONE

    play(conversation)
