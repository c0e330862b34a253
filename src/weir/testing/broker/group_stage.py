"""Consumer groups over a real broker in simulated time, and members that speak to it request by request."""

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from weir.broker.broker import Broker
from weir.broker.groups.group import GroupSettings
from weir.broker.groups.group_coordinator import GroupCoordinator
from weir.broker.metadata.registry import Registry
from weir.broker.security.authentication import SecuritySettings
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.gateway import KafkaServer
from weir.gateway.kafka.metadata import Catalog
from weir.gateway.kafka.settings import KafkaSettings
from weir.model.ledger import Quorum
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.stream.settings import StreamSettings
from weir.testing.broker.fake_storage import compose_on_fakes, stage_composition
from weir.testing.kafka.stage import Peer
from weir.testing.world.world import World, simulate
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.codec import encode_assignment, encode_subscription

_Commit = m.OffsetCommitRequest
_Fetch = m.OffsetFetchRequest


@dataclass
class Table:
    """Where members sit."""

    server: KafkaServer
    registry: Registry
    broker: Broker
    catalog: Catalog
    groups: GroupCoordinator
    runtime: Runtime

    async def member(self, role: str = "") -> "Member":
        peer = Member(await self.runtime.net.connect("server", self.server.port))
        if role:
            await peer.call(ApiKey.SASL_HANDSHAKE, 1, m.SaslHandshakeRequest(mechanism="PLAIN"))
            proof = m.SaslAuthenticateRequest(auth_bytes=b"\0any\0" + role.encode())
            await peer.call(ApiKey.SASL_AUTHENTICATE, 2, proof)
        return peer

    async def topic(self, name: str = "orders", partitions: int = 2) -> bytes:
        """Its id."""
        await self.registry.topics.create(TopicName.parse(name), partitions=partitions)
        return self.catalog.id_of(self.catalog.topic(name))


class Member(Peer):
    """A consumer's side of the conversation."""

    async def join(self, version: int = 9, *, group: str = "g", member_id: str = "", **more: Any) -> Any:
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(
            name="range", metadata=encode_subscription(0, m.ConsumerProtocolSubscription(topics=["orders"]))
        )
        asked = {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 20_000,
            "protocol_type": "consumer",
            "protocols": [protocol],
            **more,
        }
        request = m.JoinGroupRequest(group_id=group, member_id=member_id, **asked)
        answer = await self.call(ApiKey.JOIN_GROUP, version, request)
        if answer.error_code != Code.MEMBER_ID_REQUIRED:
            return answer
        assert answer.generation_id == -1
        return await self.join(version, group=group, member_id=answer.member_id, **more)

    async def sync(self, joined: Any, version: int = 5, *, group: str = "g", **shares: list[int]) -> Any:
        """The leader gives partitions of `orders` to members, named by their ids with dashes as underscores."""
        assignments = [
            m.SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=member_id.replace("_", "-"),
                assignment=encode_assignment(
                    0,
                    m.ConsumerProtocolAssignment(
                        assigned_partitions=[
                            m.ConsumerProtocolAssignment.TopicPartition(topic="orders", partitions=indexes)
                        ]
                    ),
                ),
            )
            for member_id, indexes in shares.items()
        ]
        request = m.SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        return await self.call(ApiKey.SYNC_GROUP, version, request)

    async def settle(self, **more: Any) -> Any:
        """Join a group alone, and take both partitions."""
        joined = await self.join(**more)
        await self.sync(joined, 5, group=more.get("group", "g"), **{joined.member_id.replace("-", "_"): [0, 1]})
        return joined

    async def beat(self, joined: Any, version: int = 4, *, group: str = "g") -> int:
        request = m.HeartbeatRequest(
            group_id=group, generation_id=joined.generation_id, member_id=joined.member_id
        )
        return int((await self.call(ApiKey.HEARTBEAT, version, request)).error_code)

    async def commit(
        self,
        positions: dict[int, int],
        joined: Any = None,
        version: int = 9,
        *,
        group: str = "g",
        topic: str = "orders",
        topic_id: bytes = bytes(16),
        metadata: str | None = "note",
    ) -> list[int]:
        parts = [
            _Commit.OffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=0,
                committed_metadata=metadata,
            )
            for index, offset in positions.items()
        ]
        request = _Commit(
            group_id=group,
            generation_id_or_member_epoch=-1 if joined is None else joined.generation_id,
            member_id="" if joined is None else joined.member_id,
            topics=[_Commit.OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=parts)],
        )
        answer = await self.call(ApiKey.OFFSET_COMMIT, version, request)
        return [part.error_code for part in answer.topics[0].partitions]

    async def committed(
        self,
        indexes: list[int] | None,
        version: int = 9,
        *,
        group: str = "g",
        topic: str = "orders",
        topic_id: bytes = bytes(16),
    ) -> Any:
        """{partition: offset or error}; of the one topic, or of all."""
        if version < 8:
            topics = (
                None
                if indexes is None
                else [_Fetch.OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)]
            )
            request = _Fetch(group_id=group, topics=topics)
            found = await self.call(ApiKey.OFFSET_FETCH, version, request)
        else:
            several = (
                None
                if indexes is None
                else [_Fetch.OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=indexes)]
            )
            request = _Fetch(groups=[_Fetch.OffsetFetchRequestGroup(group_id=group, topics=several)])
            found = (await self.call(ApiKey.OFFSET_FETCH, version, request)).groups[0]
        assert found.error_code == Code.NONE
        return {
            part.partition_index: Code(part.error_code) if part.error_code else part.committed_offset
            for told in found.topics
            for part in told.partitions
        }

    async def groups(self, version: int = 5, **filters: list[str]) -> list[tuple[str, str]]:
        answer = await self.call(ApiKey.LIST_GROUPS, version, m.ListGroupsRequest(**filters))
        assert answer.error_code == Code.NONE
        return [(group.group_id, group.group_state) for group in answer.groups]

    async def described(self, version: int = 6, *, group: str = "g", **more: Any) -> Any:
        request = m.DescribeGroupsRequest(groups=[group], **more)
        return (await self.call(ApiKey.DESCRIBE_GROUPS, version, request)).groups[0]

    async def deleted(self, *groups: str, version: int = 2) -> list[int]:
        request = m.DeleteGroupsRequest(groups_names=list(groups))
        return [one.error_code for one in (await self.call(ApiKey.DELETE_GROUPS, version, request)).results]

    async def leave(self, *members: Any, version: int = 5, group: str = "g") -> Any:
        identities = [
            m.LeaveGroupRequest.MemberIdentity(member_id=one, group_instance_id=instance)
            for one, instance in members
        ]
        request = m.LeaveGroupRequest(group_id=group, member_id=members[0][0], members=identities)
        return await self.call(ApiKey.LEAVE_GROUP, version, request)

    async def offsets_deleted(self, indexes: list[int], *, group: str = "g", topic: str = "orders") -> Any:
        parts = [m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
        named = m.OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=parts)
        request = m.OffsetDeleteRequest(group_id=group, topics=[named])
        answer = await self.call(ApiKey.OFFSET_DELETE, 0, request)
        return answer.error_code or [part.error_code for part in answer.topics[0].partitions]


def play(
    conversation: Callable[[Table], Coroutine[Any, Any, None]],
    *,
    security: SecuritySettings | None = None,
    **settings: Any,
) -> None:
    async def scenario(world: World) -> None:
        async def main(runtime: Runtime) -> None:
            how = stage_composition(
                security, groups=GroupSettings(**settings), streams=StreamSettings(quorum=Quorum(3, 2, 2))
            )
            async with AsyncExitStack() as stack:
                composed = await compose_on_fakes(runtime, how, stack, bookies=3)
                server = await composed.serve_kafka(KafkaSettings(host="server", port=9092))

                async def client(its: Runtime) -> None:
                    table = Table(
                        server, composed.registry, composed.broker, composed.catalog, composed.groups, its
                    )
                    await conversation(table)

                await world.node("client").start(client)

        await world.node("server").start(main)

    simulate(1, scenario)
