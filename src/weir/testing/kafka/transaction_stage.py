"""A Kafka gateway over a real broker with coordinators, and transactional clients of it, in simulated time."""

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from weir.broker.broker import Broker
from weir.broker.metadata.registry import Registry
from weir.broker.security.authentication import SecuritySettings
from weir.broker.transactions.transaction_coordinator import Transactions
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.gateway import KafkaServer
from weir.gateway.kafka.settings import KafkaSettings
from weir.model.batch import Stamp
from weir.model.ledger import Quorum
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.stream.settings import StreamSettings
from weir.testing.broker.fake_storage import compose_on_fakes, stage_composition
from weir.testing.kafka.stage import Peer, batch_of
from weir.testing.storage.fakes import FakeBookiePool
from weir.testing.world.world import World, simulate
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.record_batch import TRANSACTIONAL

_EPOCH_SINCE = 5
SECURE = SecuritySettings(authentication=True, authorisation=True, superusers=("root",))


@dataclass
class Stage:
    server: KafkaServer
    registry: Registry
    broker: Broker
    transactions: Transactions
    runtime: Runtime
    bookies: FakeBookiePool

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
        named: dict[str, Any] = {"generation_id_or_member_epoch": -1, "member_id": "", **more}
        request = request_type(
            transactional_id=name,
            group_id="g",
            producer_id=self.who[0],
            producer_epoch=self.who[1],
            **named,
            topics=[request_type.TxnOffsetCommitRequestTopic(name="orders", partitions=parts)],
        )
        answer = await self.call(ApiKey.TXN_OFFSET_COMMIT, version, request)
        return [part.error_code for part in answer.topics[0].partitions]

    async def end(self, commit: bool = True, version: int = 4, name: str = "x") -> int:
        """Since version 5 the client is somebody else afterwards."""
        request = m.EndTxnRequest(
            transactional_id=name, producer_id=self.who[0], producer_epoch=self.who[1], committed=commit
        )
        answer = await self.call(ApiKey.END_TXN, version, request)
        if version >= _EPOCH_SINCE and not answer.error_code:
            self.who = (answer.producer_id, answer.producer_epoch)
        else:
            assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
        return int(answer.error_code)

    async def send(
        self,
        index: int = 0,
        sequence: int = 0,
        *values: bytes,
        transactional: bool = True,
        version: int = 9,
        name: str | None = "x",
    ) -> int:
        """Produce to a partition of `orders`."""
        self.begin_send({index: sequence}, *values, transactional=transactional, version=version, name=name)
        return (await self.sent())[0]

    def begin_send(
        self,
        numbers: dict[int, int],
        *values: bytes,
        transactional: bool = True,
        version: int = 9,
        name: str | None = "x",
        **more: Any,
    ) -> None:
        """Produce to partitions, each with its sequence number; `sent` has the answer."""
        request_type = m.ProduceRequest
        attributes = TRANSACTIONAL if transactional else 0
        parts = [
            request_type.PartitionProduceData(
                index=index,
                records=batch_of(*(values or (b"m",)), stamp=Stamp(*self.who, sequence), attributes=attributes),
            )
            for index, sequence in numbers.items()
        ]
        topic = request_type.TopicProduceData(name="orders", partition_data=parts)
        fields: dict[str, Any] = {"transactional_id": name, "acks": -1, "timeout_ms": 1000, **more}
        self.ask(ApiKey.PRODUCE, version, request_type(topic_data=[topic], **fields))

    async def sent(self) -> list[int]:
        """The codes of the next answer to a produce."""
        return [part.error_code for part in (await self.hear()).responses[0].partition_responses]

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
        how = stage_composition(security, streams=StreamSettings(quorum=Quorum(1, 1, 1)), producer_ids=100)
        async with AsyncExitStack() as stack:
            bookies = FakeBookiePool()
            composed = await compose_on_fakes(runtime, how, stack, bookies=1, pool=bookies)
            server = await composed.serve_kafka(KafkaSettings(host="server", port=0))
            stage = Stage(server, composed.registry, composed.broker, composed.transactions, runtime, bookies)
            await conversation(stage)

    async def scenario(world: World) -> None:
        await world.node("server").start(main)

    simulate(1, scenario)
