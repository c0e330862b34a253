"""Transcripts of transactions, version 2: begun by what is sent, an epoch for each, over a real broker."""

from typing import Any

import pytest

from weir.broker.coordination.shards import COORDINATOR
from weir.gateway.kafka.errors import Code
from weir.model.errors import NotOwnerError, StreamError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.testing.kafka.transaction_stage import SECURE, Client, Stage, play
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.codec import encode_subscription
from weir.wire.kafka.record_batch import parse_header, split_batches

ORDERS = TopicName.parse("orders")
#: The first versions of the second kind.
PRODUCE, OFFSETS, END = 12, 5, 5


async def positions(client: Client) -> list[int]:
    fetch = m.OffsetFetchRequest
    asked = fetch.OffsetFetchRequestTopic(name="orders", partition_indexes=[0, 1])
    found = await client.call(ApiKey.OFFSET_FETCH, 7, fetch(group_id="g", topics=[asked], require_stable=True))
    return [part.committed_offset for part in found.topics[0].partitions]


async def logged(client: Client, index: int = 0) -> list[tuple[int, bool]]:
    """Epoch and kind of every batch in a partition: whether it is a marker."""
    client.fetch(("orders", index, 0))
    part = await client.fetched()
    headers = [parse_header(batch) for batch in split_batches(part.records)]
    return [(header.producer_epoch, header.control) for header in headers]


async def version_of(client: Client, version: int) -> Any:
    request = m.ApiVersionsRequest(client_software_name="peer", client_software_version="1")
    return await client.call(ApiKey.API_VERSIONS, version, request)


# --- what goes well -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_clients_are_told_that_it_is_in_force(version: int) -> None:
    async def conversation(stage: Stage) -> None:
        answer = await version_of(await stage.client(), version)
        supported = [(one.name, one.min_version, one.max_version) for one in answer.supported_features]
        finalised = [(one.name, one.min_version_level, one.max_version_level) for one in answer.finalized_features]
        # Clients of version 3 cannot read a feature whose lowest level is 0, and get none from Kafka either.
        assert supported == ([("transaction.version", 0, 2)] if version >= 4 else [])
        assert finalised == ([("transaction.version", 2, 2)] if version >= 3 else [])
        assert answer.finalized_features_epoch == (0 if version >= 3 else -1)
        served = {one.api_key: one.max_version for one in answer.api_keys}
        last = {ApiKey.PRODUCE: 13, ApiKey.END_TXN: 5, ApiKey.TXN_OFFSET_COMMIT: 5, ApiKey.INIT_PRODUCER_ID: 6}
        assert {key: served[key] for key in last} == last

    play(conversation)


def test_what_is_sent_begins_a_transaction_and_each_end_an_epoch() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        assert await client.init(version=6) == Code.NONE
        first = client.who
        for number, commit in enumerate((True, False, True)):
            client.begin_send({0: 0, 1: 0}, version=PRODUCE)
            assert await client.sent() == [Code.NONE, Code.NONE]
            assert await client.send(0, 1, version=PRODUCE) == Code.NONE
            assert await client.commit_offsets({0: number + 1, 1: 7}, OFFSETS) == [Code.NONE, Code.NONE]
            assert (await client.describe("x"))[0].transaction_state == "Ongoing"
            assert await client.end(commit, END) == Code.NONE
            assert client.who == (first[0], number + 1)
        assert await positions(client) == [3, 7]
        stale = {"generation_id_or_member_epoch": 3, "member_id": "nobody"}  # of a group that never had members
        assert await client.commit_offsets({0: 9}, OFFSETS, **stale) == [Code.UNKNOWN_MEMBER_ID]
        assert await logged(client, 0) == [
            (epoch, marker)
            for number in range(3)
            for epoch, marker in ((number, False),) * 2 + ((number + 1, True),)
        ]
        topic = await stage.broker.topic(ORDERS.at(1), role="anyone")
        assert (topic.stable_offset, topic.end_offset) == (6, 6)

    play(conversation)


def test_clients_of_both_versions_go_on_side_by_side() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        old, new = await stage.client(), await stage.client()
        assert [await old.init("old"), await new.init("new")] == [Code.NONE, Code.NONE]
        for number in range(2):
            assert await old.add({"orders": [0]}, name="old") == [Code.NONE]
            assert await old.send(0, number, version=11, name="old") == Code.NONE
            assert await new.send(0, 0, version=PRODUCE, name="new") == Code.NONE
            assert await old.end(name="old") == Code.NONE
            assert await new.end(True, END, name="new") == Code.NONE
        assert (old.who[1], new.who[1]) == (0, 2)
        # A client may also change its mind, when it finds out what the broker speaks.
        assert await old.send(0, 2, version=PRODUCE, name="old") == Code.NONE
        assert await old.end(True, END, name="old") == Code.NONE
        assert await old.add({"orders": [0]}, name="old") == [Code.NONE]
        assert await old.send(0, 0, name="old") == Code.NONE
        assert await old.end(name="old") == Code.NONE
        topic = await stage.broker.topic(ORDERS.at(0), role="anyone")
        assert topic.stable_offset == topic.end_offset == 12

    play(conversation)


def test_an_end_whose_answer_was_lost_is_answered_again() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        await client.init()
        before = client.who
        await client.send(version=PRODUCE)
        assert await client.end(True, END) == Code.NONE
        after, client.who = client.who, before
        await stage.broker.unload(COORDINATOR)
        assert await client.end(True, END) == Code.NONE
        assert client.who == after
        client.who = before
        assert await client.end(False, END) == Code.INVALID_TXN_STATE
        client.who = after
        assert await client.end(True, END) == Code.INVALID_TXN_STATE  # nothing was begun
        assert await client.end(False, END) == Code.NONE
        assert client.who == (after[0], after[1] + 1)

    play(conversation)


def test_partitions_of_a_transaction_are_asked_for_once_each() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        await client.init()
        transactions = stage.transactions
        add, added = transactions.add_partitions, []

        async def counted(name: str, identity: Any, parts: Any, **more: Any) -> None:
            added.append(list(parts))
            await add(name, identity, parts, **more)

        transactions.add_partitions = counted  # type: ignore[method-assign]
        for sequence in range(3):
            client.begin_send({0: sequence}, version=PRODUCE)
            client.begin_send({0: sequence + 10, 1: sequence}, version=PRODUCE)  # of which one is out of order
        assert [(await client.sent())[0] for _ in range(6)] == [Code.NONE, Code.OUT_OF_ORDER_SEQUENCE_NUMBER] * 3
        assert added == [[ORDERS.at(0)], [ORDERS.at(1)]]
        await client.send(0, 0, version=PRODUCE, transactional=False)
        assert len(added) == 2

    play(conversation)


# --- refusals -------------------------------------------------------------------------------------------------


def test_whoever_is_not_the_ids_producer_begins_nothing() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        first, second = await stage.client(), await stage.client()
        await first.init()
        assert await second.init("y") == Code.NONE
        assert await first.send(name="y", version=PRODUCE) == Code.INVALID_PRODUCER_ID_MAPPING
        assert await first.send(name="nobody", version=PRODUCE) == Code.INVALID_PRODUCER_ID_MAPPING
        assert await first.send(name="", version=PRODUCE) == Code.INVALID_REQUEST
        assert await first.send(name=None, version=PRODUCE) == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await first.send(version=PRODUCE) == Code.NONE
        assert await second.init("x") == Code.NONE
        assert await first.send(0, 1, version=PRODUCE) == Code.INVALID_PRODUCER_EPOCH
        assert await first.commit_offsets({0: 1}, OFFSETS) == [Code.INVALID_PRODUCER_EPOCH]
        assert await first.end(True, END) == Code.PRODUCER_FENCED
        assert (await second.describe("x"))[0].transaction_state == "Empty"

    play(conversation)


def test_what_cannot_be_stored_begins_nothing() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        await client.init()
        client.begin_send({0: 0}, version=PRODUCE, acks=7)
        assert await client.sent() == [Code.INVALID_REQUIRED_ACKS]
        client.begin_send({7: 0}, version=PRODUCE)
        assert await client.sent() == [Code.UNKNOWN_TOPIC_OR_PARTITION]
        data = m.ProduceRequest.PartitionProduceData(index=0, records=b"x" * 100)
        topic = m.ProduceRequest.TopicProduceData(name="orders", partition_data=[data])
        request = m.ProduceRequest(transactional_id="x", acks=-1, timeout_ms=1000, topic_data=[topic])
        client.ask(ApiKey.PRODUCE, PRODUCE, request)
        assert (await client.sent())[0] != Code.NONE
        assert await client.commit_offsets({7: 1, 8: -1}, OFFSETS) == [Code.UNKNOWN_TOPIC_OR_PARTITION] * 2
        assert (await client.describe("x"))[0].transaction_state == "Empty"
        assert await client.end(False, END) == Code.NONE  # clients give up by that, and get a new epoch

    play(conversation)


def test_older_produce_requests_begin_nothing_and_newer_of_them_say_what_mends_it() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        await client.init()
        assert await client.send(version=10) == Code.INVALID_TXN_STATE
        assert await client.send(version=11) == Code.TRANSACTION_ABORTABLE
        assert await client.send(version=PRODUCE) == Code.NONE
        assert await client.send(0, 1, version=PRODUCE, transactional=False) == Code.INVALID_TXN_STATE

    play(conversation)


def test_while_the_last_transaction_is_ended_clients_are_told_to_try_again() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        await client.init()
        assert await client.send(version=PRODUCE) == Code.NONE
        topic: Any = await stage.broker.topic(ORDERS.at(0), role="anyone")
        end = topic.end_transaction

        async def slow(*args: Any, **more: Any) -> None:
            await stage.runtime.clock.sleep(20)
            await end(*args, **more)

        topic.end_transaction = slow
        assert await client.end(True, END) == Code.NONE  # decided
        assert await client.send(version=PRODUCE) == Code.CONCURRENT_TRANSACTIONS
        assert await client.commit_offsets({0: 1}, OFFSETS) == [Code.CONCURRENT_TRANSACTIONS]
        await stage.runtime.clock.sleep(30)
        assert await client.send(version=PRODUCE) == Code.NONE

    play(conversation)


def test_a_coordinator_that_was_let_go_of_is_loaded_by_what_is_sent() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        await client.init()
        assert await client.send(0, 0, version=PRODUCE) == Code.NONE
        await stage.broker.unload(COORDINATOR)
        assert await client.send(1, 0, version=PRODUCE) == Code.NONE
        assert await client.send(0, 1, version=PRODUCE) == Code.NONE
        assert await client.end(True, END) == Code.NONE

    play(conversation)


def test_a_coordinator_that_is_elsewhere_makes_clients_look_for_the_partition() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        await client.init()
        add = stage.transactions.add_partitions

        def failing(failure: Exception) -> Any:
            async def fail(*args: Any, **more: Any) -> None:
                raise failure

            return fail

        stage.transactions.add_partitions = failing(NotOwnerError("moved"))  # type: ignore[method-assign]
        assert await client.send(version=PRODUCE) == Code.NOT_LEADER_OR_FOLLOWER
        stage.transactions.add_partitions = failing(StreamError("slow"))  # type: ignore[method-assign]
        assert await client.send(version=PRODUCE) == Code.NOT_ENOUGH_REPLICAS
        stage.transactions.add_partitions = add  # type: ignore[method-assign]
        assert await client.send(version=PRODUCE) == Code.NONE

    play(conversation)


# --- groups ---------------------------------------------------------------------------------------------------


async def join(client: Client, instance_id: str | None = None) -> tuple[str, int]:
    """Become the only member of the group: its id and generation."""
    said = encode_subscription(0, m.ConsumerProtocolSubscription(topics=["orders"]))
    request = m.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=1_000,
        member_id="",
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=said)],
    )
    answer = await client.call(ApiKey.JOIN_GROUP, 5, request)
    if answer.error_code == Code.MEMBER_ID_REQUIRED:
        request.member_id = answer.member_id
        answer = await client.call(ApiKey.JOIN_GROUP, 5, request)
    assert answer.error_code == Code.NONE
    sync = m.SyncGroupRequest(
        group_id="g",
        generation_id=answer.generation_id,
        member_id=answer.member_id,
        group_instance_id=instance_id,
        assignments=[m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=answer.member_id, assignment=b"")],
    )
    assert (await client.call(ApiKey.SYNC_GROUP, 4, sync)).error_code == Code.NONE
    return answer.member_id, answer.generation_id


@pytest.mark.parametrize("version", [3, 4, 5])
def test_positions_are_moved_in_the_name_of_a_member_of_the_present_generation(version: int) -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        member, generation = await join(client)
        await client.init()
        if version < OFFSETS:
            await client.add_offsets(version=3)

        async def moved(who: str, when: int, instance: str | None = None) -> list[int]:
            named = {"member_id": who, "generation_id_or_member_epoch": when, "group_instance_id": instance}
            return await client.commit_offsets({0: 5, 9: 5}, version, **named)

        unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
        assert await moved("nobody", generation) == [Code.UNKNOWN_MEMBER_ID, unknown]
        assert await moved(member, generation + 1) == [Code.ILLEGAL_GENERATION, unknown]
        assert await moved(member, generation, "nobody") == [Code.UNKNOWN_MEMBER_ID, unknown]
        state = "Empty" if version >= OFFSETS else "Ongoing"
        assert (await client.describe("x"))[0].transaction_state == state
        assert await moved(member, generation) == [Code.NONE, unknown]
        assert await moved("", -1) == [Code.NONE, unknown]  # its producer is fenced by other means

    play(conversation)


def test_a_static_member_whose_place_another_took_is_fenced() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        first, second = await stage.client(), await stage.client()
        member, generation = await join(first, "fixed")
        await join(second, "fixed")
        await first.init()
        named = {"member_id": member, "generation_id_or_member_epoch": generation, "group_instance_id": "fixed"}
        assert await first.commit_offsets({0: 5}, OFFSETS, **named) == [Code.FENCED_INSTANCE_ID]

    play(conversation)


# --- who may --------------------------------------------------------------------------------------------------


def test_rights_are_those_of_every_request() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        await stage.topic("other")
        for role in ("mine", "yours"):
            await stage.registry.grants.grant(ORDERS, role, (Action.PRODUCE, Action.CONSUME))
        await stage.registry.grants.grant(ORDERS, "reader", (Action.CONSUME,))
        mine, yours, reader = [await stage.client(role) for role in ("mine", "yours", "reader")]
        assert [await mine.init(), await reader.init("r")] == [Code.NONE, Code.NONE]
        yours.who = mine.who
        assert await yours.send(version=PRODUCE) == Code.INVALID_PRODUCER_ID_MAPPING
        assert await yours.commit_offsets({0: 1}, OFFSETS) == [Code.INVALID_PRODUCER_ID_MAPPING]
        assert await reader.send(name="r", version=PRODUCE) == Code.TOPIC_AUTHORIZATION_FAILED
        assert await mine.send(version=PRODUCE) == Code.NONE
        assert await yours.send(version=PRODUCE) == Code.INVALID_PRODUCER_ID_MAPPING
        assert await yours.end(True, END) == Code.INVALID_PRODUCER_ID_MAPPING
        assert await mine.commit_offsets({0: 1}, OFFSETS) == [Code.NONE]
        assert await mine.end(True, END) == Code.NONE
        assert (await reader.describe("r"))[0].transaction_state == "Empty"
        assert await reader.commit_offsets({0: 2}, OFFSETS, name="r") == [Code.NONE]
        await stage.registry.grants.grant(ORDERS, "mine", (Action.CONSUME,))  # and no more
        assert await mine.send(version=PRODUCE) == Code.TOPIC_AUTHORIZATION_FAILED
        assert (await mine.describe("x"))[0].transaction_state == "CompleteCommit"

    play(conversation, security=SECURE)
