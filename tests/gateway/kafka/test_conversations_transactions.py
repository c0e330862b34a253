"""Transcripts of transactions, over a real broker in simulated time: every version, refusals, and who may."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from weir.broker.api import Identity
from weir.broker.broker import Broker
from weir.broker.context import BrokerContext
from weir.broker.coordinator import COORDINATOR, Homes
from weir.broker.group_offsets import GroupOffsets
from weir.broker.groups import GroupCoordinator
from weir.broker.limits import Budget
from weir.broker.ports import SoleOwner
from weir.broker.registry import Registry
from weir.broker.security import Authoriser, SecuritySettings, TopicGuard
from weir.broker.settings import BrokerSettings
from weir.broker.transactions import Transactions
from weir.gateway.kafka.catalog import Catalog
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.server import KafkaServer
from weir.gateway.kafka.services import Services
from weir.gateway.kafka.settings import KafkaSettings
from weir.ledger.client import LedgerClient
from weir.ledger.idblocks import IdBlocks
from weir.meta import keys
from weir.meta.memory import MemoryCore, MemoryMeta
from weir.model.batch import Stamp
from weir.model.errors import NotAuthenticatedError
from weir.model.ids import BookieId
from weir.model.ledger import Quorum
from weir.model.policies import DEFAULT_POLICIES
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.runtime import Runtime
from weir.stream.context import StreamContext
from weir.stream.settings import StreamSettings
from weir.stream.tail import TailCache
from weir.testing.fakes import FakeBookiePool
from weir.testing.kafka_stage import Peer, batch_of
from weir.testing.world import World, simulate
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey
from weir.wire.kafka.records import TRANSACTIONAL
from weir.wire.metadata import BookieInfo, encode_bookie_info

ORDERS = TopicName.parse("orders")
SECURE = SecuritySettings(authentication=True, authorisation=True, superusers=("root",))


class _Roles:
    """The password is the role; who says nothing is anyone, where that is allowed."""

    def __init__(self, open_to_all: bool) -> None:
        self._open = open_to_all

    def authenticate(self, method: str, credentials: bytes, *, certificate: bytes | None = None) -> Identity:
        if not credentials and not self._open:
            raise NotAuthenticatedError("who are you?")
        return Identity(credentials.decode() or "anyone")


@dataclass
class Stage:
    server: KafkaServer
    registry: Registry
    broker: Broker
    runtime: Runtime

    async def client(self, role: str = "") -> "Client":
        client = Client(await self.runtime.net.connect("server", self.server.port))
        if role:
            await client.call(ApiKey.SASL_HANDSHAKE, 1, m.SaslHandshakeRequest(mechanism="PLAIN"))
            proof = m.SaslAuthenticateRequest(auth_bytes=b"\0any\0" + role.encode())
            assert (await client.call(ApiKey.SASL_AUTHENTICATE, 2, proof)).error_code == Code.NONE
        return client

    async def topic(self, name: str = "orders", partitions: int = 2) -> None:
        await self.registry.topics.create(TopicName.parse(name), partitions=partitions)


class Client(Peer):
    """A producer's side of the conversation."""

    who: tuple[int, int] = (-1, -1)

    async def init(self, name: str | None = "x", version: int = 5, **more: Any) -> int:
        request = m.InitProducerIdRequest(
            transactional_id=name,
            **{"transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1} | more,
        )
        answer = await self.call(ApiKey.INIT_PRODUCER_ID, version, request)
        if not answer.error_code:
            self.who = (answer.producer_id, answer.producer_epoch)
        else:
            assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
        return int(answer.error_code)

    async def add(
        self, parts: dict[str, list[int]], version: int = 3, *, name: str = "x", **more: Any
    ) -> list[int]:
        request_type = m.AddPartitionsToTxnRequest
        topics = [request_type.AddPartitionsToTxnTopic(name=t, partitions=list(p)) for t, p in parts.items()]
        if version >= 4:
            one = request_type.AddPartitionsToTxnTransaction(
                transactional_id=name, producer_id=self.who[0], producer_epoch=self.who[1], topics=topics, **more
            )
            answer = await self.call(ApiKey.ADD_PARTITIONS_TO_TXN, version, request_type(transactions=[one]))
            assert answer.error_code == Code.NONE
            found = answer.results_by_transaction[0].topic_results
        else:
            request = request_type(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=self.who[0],
                v3_and_below_producer_epoch=self.who[1],
                v3_and_below_topics=topics,
            )
            answer = await self.call(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
            found = answer.results_by_topic_v3_and_below
        return [part.partition_error_code for topic in found for part in topic.results_by_partition]

    async def add_offsets(self, group: str = "g", version: int = 4, name: str = "x") -> int:
        request = m.AddOffsetsToTxnRequest(
            transactional_id=name, producer_id=self.who[0], producer_epoch=self.who[1], group_id=group
        )
        return int((await self.call(ApiKey.ADD_OFFSETS_TO_TXN, version, request)).error_code)

    async def commit_offsets(
        self, positions: dict[int, int], version: int = 4, *, name: str = "x", **more: Any
    ) -> list[int]:
        request_type = m.TxnOffsetCommitRequest
        parts = [
            request_type.TxnOffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=more.pop("metadata", "note")
            )
            for index, offset in positions.items()
        ]
        request = request_type(
            transactional_id=name,
            group_id="g",
            producer_id=self.who[0],
            producer_epoch=self.who[1],
            **{"generation_id_or_member_epoch": -1, "member_id": ""} | more,
            topics=[request_type.TxnOffsetCommitRequestTopic(name="orders", partitions=parts)],
        )
        answer = await self.call(ApiKey.TXN_OFFSET_COMMIT, version, request)
        return [part.error_code for part in answer.topics[0].partitions]

    async def end(self, commit: bool = True, version: int = 4, name: str = "x") -> int:
        request = m.EndTxnRequest(
            transactional_id=name, producer_id=self.who[0], producer_epoch=self.who[1], committed=commit
        )
        return int((await self.call(ApiKey.END_TXN, version, request)).error_code)

    async def produce(self, index: int = 0, sequence: int = 0, *values: bytes, transactional: bool = True) -> int:
        stamp = Stamp(self.who[0], self.who[1], sequence)
        records = batch_of(*(values or (b"m",)), stamp=stamp, attributes=TRANSACTIONAL if transactional else 0)
        request_type = m.ProduceRequest
        part = request_type.PartitionProduceData(index=index, records=records)
        topic = request_type.TopicProduceData(name="orders", partition_data=[part])
        answer = await self.call(
            ApiKey.PRODUCE, 9, request_type(transactional_id="x", acks=-1, timeout_ms=1000, topic_data=[topic])
        )
        return int(answer.responses[0].partition_responses[0].error_code)

    async def describe(self, *names: str) -> list[Any]:
        request = m.DescribeTransactionsRequest(transactional_ids=list(names))
        return list((await self.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)).transaction_states)

    async def listed(self, version: int = 2, **filters: Any) -> list[tuple[str, str]]:
        request = m.ListTransactionsRequest(**{"duration_filter": -1} | filters)
        answer = await self.call(ApiKey.LIST_TRANSACTIONS, version, request)
        assert answer.error_code == Code.NONE
        return [(one.transactional_id, one.transaction_state) for one in answer.transaction_states]


def play(
    conversation: Callable[[Stage], Coroutine[Any, Any, None]], *, security: SecuritySettings | None = None
) -> None:
    async def main(runtime: Runtime) -> None:
        core = MemoryCore(runtime.clock)
        meta = MemoryMeta(core, runtime)
        info = BookieInfo(BookieId("b0"), "nowhere", 1)
        await meta.put(keys.bookie_writable(info.bookie_id), encode_bookie_info(info))
        registry = Registry(meta, runtime, DEFAULT_POLICIES)
        await registry.start()
        ledgers = LedgerClient(runtime, meta, FakeBookiePool())
        await ledgers.start()
        streams = StreamContext(runtime, meta, ledgers, TailCache(1 << 20), StreamSettings(quorum=Quorum(1, 1, 1)))
        authoriser = Authoriser(registry, security or SecuritySettings())
        guard = TopicGuard(authoriser)
        context = BrokerContext(runtime, streams, BrokerSettings(), Budget(1 << 20), guard=guard)
        broker = Broker(context, registry, SoleOwner(), _Roles(security is None))
        homes = Homes(broker)
        offsets = GroupOffsets(broker, homes, runtime.clock)
        groups = GroupCoordinator(runtime, homes, offsets, context.members)
        transactions = Transactions(
            runtime.clock,
            homes,
            topics=broker,
            positions=offsets,
            ids=IdBlocks(runtime.clock, meta, size=100, counter=keys.PRODUCER_COUNTER),
            gate=context.transactions,
            may_use_all=authoriser.is_superuser,
        )
        transactions.start()
        services = Services(
            runtime.clock,
            broker,
            registry,
            Catalog(registry, guard),
            guard,
            authoriser,
            KafkaSettings(host="server", port=0),
            groups=groups,
            transactions=transactions,
        )
        server = KafkaServer(runtime, services)
        await server.start()
        await conversation(Stage(server, registry, broker, runtime))
        await server.close()
        await transactions.close()
        await broker.close()

    async def scenario(world: World) -> None:
        await world.node("server").start(main)

    simulate(1, scenario)


# --- what goes well -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("add_version", range(6))
@pytest.mark.parametrize("version", range(5))
def test_a_transaction_in_every_version(version: int, add_version: int) -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        assert await client.init(version=version + (version == 4)) == Code.NONE
        assert await client.add({"orders": [0, 1]}, add_version) == [Code.NONE, Code.NONE]
        assert [await client.produce(index) for index in (0, 1)] == [Code.NONE, Code.NONE]
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
        assert await client.produce(0, 0, b"a", b"b", transactional=False) == Code.NONE
        assert await client.produce(0, 0, b"a", b"b", transactional=False) == Code.NONE
        assert await client.produce(0, 3, b"d", transactional=False) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await client.produce(0, 2, b"c") == Code.NOT_LEADER_OR_FOLLOWER  # the coordinator is loaded first
        await stage.runtime.clock.sleep(1)
        assert await client.produce(0, 2, b"c") == Code.INVALID_TXN_STATE
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
        assert await client.produce() == Code.INVALID_TXN_STATE
        assert (await client.describe("x"))[0].transaction_state == "Empty"

    play(conversation)


def test_brokers_may_ask_whether_partitions_belong_to_a_transaction() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        client = await stage.client()
        await client.init()
        assert await client.add({"orders": [0]}, 4, verify_only=True) == [Code.INVALID_TXN_STATE]
        assert await client.add({"orders": [0]}, 4) == [Code.NONE]
        assert await client.add({"orders": [0]}, 5, verify_only=True) == [Code.NONE]
        assert await client.add({"orders": [0, 1]}, 5, verify_only=True) == [Code.INVALID_TXN_STATE] * 2

    play(conversation)


def test_what_is_wrong_has_kafkas_code_for_it() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        first, second = await stage.client(), await stage.client()
        assert await first.init(transaction_timeout_ms=10**9) == Code.INVALID_TRANSACTION_TIMEOUT
        assert await first.init("") == Code.INVALID_REQUEST
        assert await first.init(producer_id=5) == Code.INVALID_REQUEST
        assert await first.init(version=6, enable2_pc=True) == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await first.end() == Code.INVALID_PRODUCER_ID_MAPPING
        assert await first.init() == Code.NONE
        assert await first.end() == Code.INVALID_TXN_STATE
        assert await first.commit_offsets({0: 5}) == [Code.INVALID_TXN_STATE]
        assert await first.add_offsets() == Code.NONE
        assert await first.commit_offsets({0: -5, 1: 5, 7: 5}) == [
            Code.INVALID_REQUEST,
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
        assert await client.produce() == Code.NOT_LEADER_OR_FOLLOWER  # which clients try again
        assert await client.add({"orders": [1]}) == [Code.NONE]
        assert [await client.produce(index) for index in (0, 1)] == [Code.NONE, Code.NONE]
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
        assert await writer.add_offsets(name="w") == Code.NONE
        assert await writer.commit_offsets({0: 1}, name="w") == [Code.TOPIC_AUTHORIZATION_FAILED]
        assert await reader.init("r") == Code.NONE
        assert await reader.add({"orders": [0]}, name="r") == [Code.TOPIC_AUTHORIZATION_FAILED]
        assert await reader.add_offsets(name="r") == Code.NONE
        assert await reader.commit_offsets({0: 1}, name="r") == [Code.NONE]

    play(conversation, security=SECURE)


def test_a_transactional_id_is_its_first_users() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        await stage.registry.grants.grant(ORDERS, "mine", (Action.PRODUCE,))
        await stage.registry.grants.grant(ORDERS, "yours", (Action.PRODUCE,))
        mine, yours, root = [await stage.client(role) for role in ("mine", "yours", "root")]
        assert await mine.init() == Code.NONE
        assert await yours.init() == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        yours.who = mine.who
        assert await yours.end() == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await yours.add({"orders": [0]}) == [Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
        assert await yours.listed() == []
        assert [one.error_code for one in await yours.describe("x")] == [
            Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        ]
        assert await root.listed() == [("x", "Empty")]
        assert await mine.add({"orders": [0]}) == [Code.NONE]
        assert await mine.end() == Code.NONE

    play(conversation, security=SECURE)
