"""What a role was not granted, it cannot tell from what is not there: every API of Kafka, asked for both."""

import re
from typing import Any, NamedTuple

import pytest

from weir.gateway.kafka.api_table import HANDLERS, load_handlers
from weir.gateway.kafka.errors import Code
from weir.model.batch import Stamp
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.testing.kafka.stage import batch_of
from weir.testing.kafka.transaction_stage import SECURE, Client, Stage, play
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.codec import encode_subscription
from weir.wire.kafka.record_batch import TRANSACTIONAL

#: They are asked before anybody is known, or name nothing.
NAMELESS = {
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.API_VERSIONS,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.LIST_GROUPS,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.LIST_TRANSACTIONS,
}


class Named(NamedTuple):
    """What a request names. All that is there and all that is not differ in nothing else."""

    topic: str
    topic_id: bytes
    group: str
    transaction: str
    member: str
    producer: tuple[int, int]
    index: int = 0


def requests(named: Named) -> dict[ApiKey, m.Message]:
    topic, index, (producer_id, epoch) = named.topic, named.index, named.producer
    sent = batch_of(b"x", stamp=Stamp(producer_id, epoch, 0), attributes=TRANSACTIONAL)
    metadata = encode_subscription(0, m.ConsumerProtocolSubscription(topics=[topic]))
    alter = m.IncrementalAlterConfigsRequest
    added = [m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[index])]
    return {
        ApiKey.PRODUCE: m.ProduceRequest(
            transactional_id=named.transaction,
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                m.ProduceRequest.TopicProduceData(
                    name=topic,
                    topic_id=named.topic_id,
                    partition_data=[m.ProduceRequest.PartitionProduceData(index=index, records=sent)],
                )
            ],
        ),
        ApiKey.FETCH: m.FetchRequest(
            max_wait_ms=0,
            session_epoch=-1,
            max_bytes=1000,
            topics=[
                m.FetchRequest.FetchTopic(
                    topic=topic,
                    topic_id=named.topic_id,
                    partitions=[m.FetchRequest.FetchPartition(partition=index, partition_max_bytes=1000)],
                )
            ],
        ),
        ApiKey.LIST_OFFSETS: m.ListOffsetsRequest(
            topics=[
                m.ListOffsetsRequest.ListOffsetsTopic(
                    name=topic,
                    partitions=[m.ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=-1)],
                )
            ]
        ),
        ApiKey.METADATA: m.MetadataRequest(
            topics=[m.MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True
        ),
        ApiKey.OFFSET_COMMIT: m.OffsetCommitRequest(
            group_id=named.group,
            generation_id_or_member_epoch=1,
            member_id=named.member,
            topics=[
                m.OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=named.topic_id,
                    partitions=[
                        m.OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=index, committed_offset=1, committed_metadata=""
                        )
                    ],
                )
            ],
        ),
        ApiKey.OFFSET_FETCH: m.OffsetFetchRequest(
            group_id=named.group,
            topics=[m.OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[index])],
            groups=[
                m.OffsetFetchRequest.OffsetFetchRequestGroup(
                    group_id=named.group,
                    topics=[
                        m.OffsetFetchRequest.OffsetFetchRequestTopics(
                            name=topic, topic_id=named.topic_id, partition_indexes=[index]
                        )
                    ],
                )
            ],
        ),
        ApiKey.FIND_COORDINATOR: m.FindCoordinatorRequest(
            key=named.group, key_type=0, coordinator_keys=[named.group]
        ),
        ApiKey.JOIN_GROUP: m.JoinGroupRequest(
            group_id=named.group,
            member_id=named.member,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)],
        ),
        ApiKey.HEARTBEAT: m.HeartbeatRequest(group_id=named.group, generation_id=1, member_id=named.member),
        ApiKey.LEAVE_GROUP: m.LeaveGroupRequest(
            group_id=named.group,
            member_id=named.member,
            members=[m.LeaveGroupRequest.MemberIdentity(member_id=named.member)],
        ),
        ApiKey.SYNC_GROUP: m.SyncGroupRequest(
            group_id=named.group,
            generation_id=1,
            member_id=named.member,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[],
        ),
        ApiKey.DESCRIBE_GROUPS: m.DescribeGroupsRequest(groups=[named.group]),
        ApiKey.DELETE_GROUPS: m.DeleteGroupsRequest(groups_names=[named.group]),
        ApiKey.OFFSET_DELETE: m.OffsetDeleteRequest(
            group_id=named.group,
            topics=[
                m.OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=index)],
                )
            ],
        ),
        ApiKey.CREATE_TOPICS: m.CreateTopicsRequest(
            topics=[
                m.CreateTopicsRequest.CreatableTopic(
                    name=topic, num_partitions=1, replication_factor=1, assignments=[], configs=[]
                )
            ],
            timeout_ms=1000,
        ),
        ApiKey.DELETE_TOPICS: m.DeleteTopicsRequest(
            topics=[
                m.DeleteTopicsRequest.DeleteTopicState(name=topic),
                m.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=named.topic_id),
            ],
            topic_names=[topic],
            timeout_ms=1000,
        ),
        ApiKey.DELETE_RECORDS: m.DeleteRecordsRequest(
            topics=[
                m.DeleteRecordsRequest.DeleteRecordsTopic(
                    name=topic,
                    partitions=[m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=index, offset=0)],
                )
            ],
            timeout_ms=1000,
        ),
        ApiKey.INIT_PRODUCER_ID: m.InitProducerIdRequest(
            transactional_id=named.transaction,
            transaction_timeout_ms=1000,
            producer_id=producer_id,
            producer_epoch=epoch,
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: m.OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                    topic=topic,
                    partitions=[
                        m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=index, leader_epoch=0)
                    ],
                )
            ],
        ),
        ApiKey.ADD_PARTITIONS_TO_TXN: m.AddPartitionsToTxnRequest(
            transactions=[
                m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                    transactional_id=named.transaction, producer_id=producer_id, producer_epoch=epoch, topics=added
                )
            ],
            v3_and_below_transactional_id=named.transaction,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=added,
        ),
        ApiKey.ADD_OFFSETS_TO_TXN: m.AddOffsetsToTxnRequest(
            transactional_id=named.transaction,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=named.group,
        ),
        ApiKey.END_TXN: m.EndTxnRequest(
            transactional_id=named.transaction, producer_id=producer_id, producer_epoch=epoch, committed=True
        ),
        ApiKey.TXN_OFFSET_COMMIT: m.TxnOffsetCommitRequest(
            transactional_id=named.transaction,
            group_id=named.group,
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id_or_member_epoch=1,
            member_id=named.member,
            topics=[
                m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=index, committed_offset=1, committed_metadata=""
                        )
                    ],
                )
            ],
        ),
        ApiKey.DESCRIBE_CONFIGS: m.DescribeConfigsRequest(
            resources=[m.DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name=topic)]
        ),
        ApiKey.ALTER_CONFIGS: m.AlterConfigsRequest(
            resources=[
                m.AlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[])
            ]
        ),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: alter(
            resources=[alter.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[])]
        ),
        ApiKey.DESCRIBE_LOG_DIRS: m.DescribeLogDirsRequest(
            topics=[m.DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=[index])]
        ),
        ApiKey.CREATE_PARTITIONS: m.CreatePartitionsRequest(
            topics=[m.CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=4, assignments=None)],
            timeout_ms=1000,
        ),
        ApiKey.DESCRIBE_PRODUCERS: m.DescribeProducersRequest(
            topics=[m.DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[index])]
        ),
        ApiKey.DESCRIBE_TRANSACTIONS: m.DescribeTransactionsRequest(transactional_ids=[named.transaction]),
    }


async def prepare(stage: Stage) -> Named:
    """A topic, a group with a member, and a transaction that has begun, all of a role that may."""
    await stage.topic()
    await stage.topic("others")
    orders, others = TopicName.parse("orders"), TopicName.parse("others")
    await stage.registry.grants.grant(orders, "owner", (Action.PRODUCE, Action.CONSUME))
    await stage.registry.grants.grant(others, "neighbour", (Action.PRODUCE, Action.CONSUME))
    owner = await stage.client("owner")
    assert await owner.init("tx-here") == Code.NONE
    assert await owner.add({"orders": [0]}, name="tx-here") == [Code.NONE]
    joining = requests(Named("orders", bytes(16), "gr0up", "tx-here", "", owner.who))[ApiKey.JOIN_GROUP]
    joined = await owner.call(ApiKey.JOIN_GROUP, 3, joining)
    assert joined.error_code == Code.NONE
    metadata = await owner.call(
        ApiKey.METADATA, 12, m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name="orders")])
    )
    return Named("orders", metadata.topics[0].topic_id, "gr0up", "tx-here", joined.member_id, owner.who)


def missing(there: Named) -> Named:
    return Named("absent", b"\7" * 16, "n0grp", "tx-gone", "none-1", (there.producer[0] + 10_000, 0))


def plain(answer: Any, named: Named) -> str:
    """The answer with what it was asked for left out."""
    text = repr(answer)
    for word in (named.topic, named.group, named.transaction, named.member, repr(named.topic_id)):
        text = text.replace(word, "NAME")
    text = re.sub(r"producer_id=\d+", "producer_id", text)  # a new one is unlike all others
    return re.sub(r"<memory[^>]*>", "", re.sub(rf"(partition|index)([=-]){named.index}\b", r"\1\2N", text))


async def differences(client: Client, there: Named, nowhere: Named, *, but: set[ApiKey]) -> list[str]:
    found = []
    # What makes something comes last.
    for key, message in sorted(requests(there).items(), key=lambda one: one[0] == ApiKey.INIT_PRODUCER_ID):
        for version in range(HANDLERS[key].first, HANDLERS[key].last + 1) if key not in but else ():
            told = plain(await client.call(key, version, message), there)
            told_nothing = plain(await client.call(key, version, requests(nowhere)[key]), nowhere)
            if told != told_nothing:
                found.append(f"{key.name} {version}:\n  {told}\n  {told_nothing}")
    return found


def test_every_api_that_names_something_is_asked() -> None:
    load_handlers()
    named = requests(Named("t", bytes(16), "g", "x", "m", (1, 0)))
    assert {ApiKey(key) for key in HANDLERS} == set(named) | NAMELESS


#: Whoever of the tenant would make a group of a name that is taken is told that it is.
INHERENT = {ApiKey.JOIN_GROUP, ApiKey.ADD_OFFSETS_TO_TXN}


@pytest.mark.parametrize(("role", "but"), [("stranger", set()), ("neighbour", INHERENT)])
def test_what_is_not_allowed_looks_like_what_is_not_there(role: str, but: set[ApiKey]) -> None:
    """Not a byte differs, but for the names: to who was granted nothing, and to who was granted something else."""

    async def conversation(stage: Stage) -> None:
        there = await prepare(stage)
        client = await stage.client(role)
        found = await differences(client, there, missing(there), but=but)
        assert not found, "\n".join(found)

    play(conversation, security=SECURE)


def test_a_partition_that_there_is_not_looks_like_one_that_is_not_allowed() -> None:
    async def conversation(stage: Stage) -> None:
        there = await prepare(stage)
        client = await stage.client("stranger")
        found = await differences(client, there, there._replace(index=7), but=set())
        assert not found, "\n".join(found)

    play(conversation, security=SECURE)
