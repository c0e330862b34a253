"""Transcripts of transactions, over a real broker in simulated time: every version, refusals, and who may."""

import pytest

from weir.broker.coordination.shards import COORDINATOR
from weir.gateway.kafka.errors import Code
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.testing.kafka.transaction_stage import SECURE, Stage, play
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey

ORDERS = TopicName.parse("orders")

# --- what goes well -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("add_version", range(6))
@pytest.mark.parametrize("version", range(5))
def test_a_transaction_in_every_version(version: int, add_version: int) -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        assert await client.init(version=version + (version == 4)) == Code.NONE
        assert await client.add({"orders": [0, 1]}, add_version) == [Code.NONE, Code.NONE]
        assert [await client.send(index) for index in (0, 1)] == [Code.NONE, Code.NONE]
        assert await client.add_offsets(version=version) == Code.NONE
        assert await client.commit_offsets({0: 5, 1: 6}, version) == [Code.NONE, Code.NONE]
        assert await client.end(version=version) == Code.NONE
        topic = await stage.broker.topic(ORDERS.at(0), role="anyone")
        assert (topic.stable_offset, topic.end_offset) == (2, 2)
        fetch = m.OffsetFetchRequest
        asked = fetch.OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 1])
        found = await client.call(ApiKey.OFFSET_FETCH, 7, fetch(group_id="g", topics=[asked], require_stable=True))
        assert [part.committed_offset for part in found.topics[0].partitions] == [5, 6]

    play(conversation)


def test_an_idempotent_producer_has_no_transactional_id() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        assert await client.init(None) == Code.NONE
        assert await client.send(0, 0, b"a", b"b", transactional=False) == Code.NONE
        assert await client.send(0, 0, b"a", b"b", transactional=False) == Code.NONE
        assert await client.send(0, 3, b"d", transactional=False) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await client.send(0, 2, b"c") == Code.INVALID_TXN_STATE
        described = await client.call(
            ApiKey.DESCRIBE_PRODUCERS,
            0,
            m.DescribeProducersRequest(
                topics=[m.DescribeProducersRequest.TopicRequest(name="orders", partition_indexes=[0, 1, 7])]
            ),
        )
        first, second, missing = described.topics[0].partitions
        assert [(p.producer_id, p.last_sequence) for p in first.active_producers] == [(client.who[0], 1)]
        assert second.active_producers == []
        assert missing.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION

    play(conversation)


# --- refusals -------------------------------------------------------------------------------------------------


def test_partitions_are_added_all_or_none() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        await client.init()
        assert await client.add({"orders": [0, 9], "no-such-topic": [0]}) == [
            Code.OPERATION_NOT_ATTEMPTED,
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            Code.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert await client.send() == Code.INVALID_TXN_STATE
        assert (await client.describe("x"))[0].transaction_state == "Empty"

    play(conversation)


def test_brokers_may_ask_whether_partitions_belong_to_a_transaction() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        await client.init()
        assert await client.add({"orders": [0]}, 4, verify_only=True) == [Code.TRANSACTION_ABORTABLE]
        assert await client.add({"orders": [0]}, 4) == [Code.NONE]
        assert await client.add({"orders": [0]}, 5, verify_only=True) == [Code.NONE]
        assert await client.add({"orders": [0, 1]}, 5, verify_only=True) == [Code.TRANSACTION_ABORTABLE] * 2

    play(conversation)


def test_what_is_wrong_has_kafkas_code_for_it() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        first, second = await stage.client(), await stage.client()
        assert await first.init(transaction_timeout_ms=10**9) == Code.INVALID_TRANSACTION_TIMEOUT
        assert await first.init("") == Code.INVALID_REQUEST
        assert await first.init(producer_id=5) == Code.INVALID_REQUEST
        assert await first.init(version=6, enable2_pc=True) == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await first.init(version=6, keep_prepared_txn=True) == Code.UNSUPPORTED_VERSION
        assert await first.end() == Code.INVALID_PRODUCER_ID_MAPPING
        assert await first.init() == Code.NONE
        assert await first.end() == Code.INVALID_TXN_STATE
        assert await first.commit_offsets({0: 5}, 3) == [Code.INVALID_TXN_STATE]
        assert await first.commit_offsets({0: 5}, 4) == [Code.TRANSACTION_ABORTABLE]
        assert await first.add_offsets() == Code.NONE
        assert await first.commit_offsets({0: -5, 1: 5, 7: 5}) == [
            Code.NONE,
            Code.NONE,
            Code.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert await first.commit_offsets({0: 5}, metadata="x" * 5000) == [Code.OFFSET_METADATA_TOO_LARGE]
        stale = {"generation_id_or_member_epoch": 3, "member_id": "nobody"}
        assert await first.commit_offsets({0: 5}, **stale) == [Code.ILLEGAL_GENERATION]
        assert await second.init() == Code.NONE
        assert await first.end() == Code.PRODUCER_FENCED
        assert await first.end(version=1) == Code.INVALID_PRODUCER_EPOCH
        assert await first.add({"orders": [0]}) == [Code.PRODUCER_FENCED]
        assert await first.add({"orders": [0]}, 1) == [Code.INVALID_PRODUCER_EPOCH]
        assert await first.add_offsets() == Code.PRODUCER_FENCED
        assert await first.commit_offsets({0: 5}) == [Code.INVALID_PRODUCER_EPOCH]
        expected = {"producer_id": first.who[0], "producer_epoch": first.who[1]}
        assert await first.init(version=4, **expected) == Code.PRODUCER_FENCED
        assert await first.init(version=3, **expected) == Code.INVALID_PRODUCER_EPOCH
        assert [one.error_code for one in await first.describe("nobody")] == [Code.TRANSACTIONAL_ID_NOT_FOUND]

    play(conversation)


def test_ids_are_listed_by_state_producer_age_and_pattern() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        for name in ("open-1", "idle-1", "idle-2"):
            await client.init(name)
        idle_2 = client.who
        await client.init("open-1")
        await client.add({"orders": [1]}, name="open-1")
        assert await client.listed() == [("idle-1", "Empty"), ("idle-2", "Empty"), ("open-1", "Ongoing")]
        assert await client.listed(state_filters=["Ongoing", "Nonsense"]) == [("open-1", "Ongoing")]
        assert await client.listed(producer_id_filters=[idle_2[0]]) == [("idle-2", "Empty")]
        assert await client.listed(duration_filter=10_000) == []
        await stage.runtime.clock.sleep(20)
        assert await client.listed(1, duration_filter=10_000) == [("open-1", "Ongoing")]
        assert await client.listed(transactional_id_pattern="idle-.*") == [
            ("idle-1", "Empty"),
            ("idle-2", "Empty"),
        ]
        bad = m.ListTransactionsRequest(transactional_id_pattern="(", duration_filter=-1)
        answer = await client.call(ApiKey.LIST_TRANSACTIONS, 2, bad)
        assert answer.error_code == Code.INVALID_REGULAR_EXPRESSION
        told = (await client.describe("open-1"))[0]
        assert [(topic.topic, topic.partitions) for topic in told.topics] == [("orders", [1])]
        assert told.transaction_timeout_ms == 60_000

    play(conversation)


def test_a_coordinator_that_was_let_go_of_is_loaded_by_the_next_request() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        await client.init()
        await client.add({"orders": [0]})
        await stage.broker.unload(COORDINATOR)
        assert await client.send() == Code.NONE
        await stage.broker.unload(COORDINATOR)
        assert await client.add({"orders": [1]}) == [Code.NONE]
        assert [await client.send(index) for index in (0, 1)] == [Code.NONE, Code.NONE]
        assert await client.end() == Code.NONE

    play(conversation)


# --- who may --------------------------------------------------------------------------------------------------


def test_whoever_may_not_produce_or_consume_may_not_do_so_in_a_transaction() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        await stage.registry.grants.grant(ORDERS, "writer", (Action.PRODUCE,))
        await stage.registry.grants.grant(ORDERS, "reader", (Action.CONSUME,))
        writer, reader = await stage.client("writer"), await stage.client("reader")
        assert await writer.init("w") == Code.NONE
        assert await writer.add({"orders": [0]}, name="w") == [Code.NONE]
        assert await writer.add_offsets(name="w") == Code.GROUP_AUTHORIZATION_FAILED
        assert await writer.commit_offsets({0: 1}, name="w") == [Code.TOPIC_AUTHORIZATION_FAILED]
        assert await reader.init("r") == Code.NONE
        assert await reader.add({"orders": [0]}, name="r") == [Code.TOPIC_AUTHORIZATION_FAILED]
        assert await reader.add_offsets(name="r") == Code.NONE
        assert await reader.commit_offsets({0: 1}, name="r") == [Code.NONE]

    play(conversation, security=SECURE)


def test_a_transactional_id_is_its_users_and_others_of_that_name_are_theirs() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        await stage.registry.grants.grant(ORDERS, "mine", (Action.PRODUCE,))
        await stage.registry.grants.grant(ORDERS, "yours", (Action.PRODUCE,))
        mine, yours, root = [await stage.client(role) for role in ("mine", "yours", "root")]
        assert await mine.init() == Code.NONE
        yours.who = mine.who
        assert await yours.end() == Code.INVALID_PRODUCER_ID_MAPPING
        assert await yours.add({"orders": [0]}) == [Code.INVALID_PRODUCER_ID_MAPPING]
        assert await yours.listed() == []
        assert [one.error_code for one in await yours.describe("x")] == [Code.TRANSACTIONAL_ID_NOT_FOUND]
        assert await yours.init() == Code.NONE
        assert yours.who != mine.who
        assert await yours.listed() == [("x", "Empty")]
        assert await root.listed() == [("x", "Empty"), ("yours/x", "Empty")]
        assert await mine.add({"orders": [0]}) == [Code.NONE]
        assert await mine.end() == Code.NONE

    play(conversation, security=SECURE)
