"""Requests of members of Kafka's groups, as simulated clients make them (see `kafka_calls`)."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from weir.gateway.kafka.errors import Code
from weir.model.ids import Buffer
from weir.testing.kafka.clients.calls import LONG_S, Membership, Part
from weir.testing.kafka.clients.client import Link, check_code
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.codec import decode_assignment, decode_subscription, encode_assignment, encode_subscription

PROTOCOL = "spread"


class Joining(NamedTuple):
    """How a member joins."""

    group: str
    topic: str
    session_ms: int
    rebalance_ms: int
    instance: str | None = None
    #: What it has, and keeps until it is told otherwise: cooperative members say so.
    owned: tuple[Part, ...] = ()


async def join(link: Link, how: Joining, member_id: str) -> Membership:
    owned = [
        m.ConsumerProtocolSubscription.TopicPartition(topic=p.topic, partitions=[p.number]) for p in how.owned
    ]
    said = encode_subscription(1, m.ConsumerProtocolSubscription(topics=[how.topic], owned_partitions=owned))
    request = m.JoinGroupRequest(
        group_id=how.group,
        session_timeout_ms=how.session_ms,
        rebalance_timeout_ms=how.rebalance_ms,
        member_id=member_id,
        group_instance_id=how.instance,
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name=PROTOCOL, metadata=said)],
    )
    answer = await link.call(ApiKey.JOIN_GROUP, 9, request, timeout_s=LONG_S)
    if answer.error_code == Code.MEMBER_ID_REQUIRED:
        request.member_id = answer.member_id
        answer = await link.call(ApiKey.JOIN_GROUP, 9, request, timeout_s=LONG_S)
    check_code(answer.error_code)
    members = {} if answer.skip_assignment else {each.member_id: _owned(each.metadata) for each in answer.members}
    return Membership(answer.member_id, answer.generation_id, answer.leader, members, how.instance)


def _owned(metadata: Buffer) -> tuple[Part, ...]:
    owned = decode_subscription(metadata).owned_partitions
    return tuple(Part(topic.topic, number) for topic in owned for number in topic.partitions)


async def sync(link: Link, group: str, member: Membership, shares: Mapping[str, Sequence[Part]]) -> list[Part]:
    """The member's share; its leader brings everyone's."""
    assignments = [
        m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=each, assignment=_assignment(parts))
        for each, parts in shares.items()
    ]
    request = m.SyncGroupRequest(
        group_id=group,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance,
        protocol_type="consumer",
        protocol_name=PROTOCOL,
        assignments=assignments,
    )
    answer = await link.call(ApiKey.SYNC_GROUP, 5, request, timeout_s=LONG_S)
    check_code(answer.error_code)
    if not len(answer.assignment):
        return []
    share = decode_assignment(answer.assignment)
    return [Part(topic.topic, index) for topic in share.assigned_partitions for index in topic.partitions]


def _assignment(parts: Sequence[Part]) -> bytes:
    topics = [
        m.ConsumerProtocolAssignment.TopicPartition(topic=part.topic, partitions=[part.number]) for part in parts
    ]
    return encode_assignment(0, m.ConsumerProtocolAssignment(assigned_partitions=topics))


async def heartbeat(link: Link, group: str, member: Membership) -> None:
    request = m.HeartbeatRequest(
        group_id=group,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance,
    )
    check_code((await link.call(ApiKey.HEARTBEAT, 3, request)).error_code)


async def leave(link: Link, group: str, member: Membership) -> None:
    leaving = m.LeaveGroupRequest.MemberIdentity(member_id=member.member_id, group_instance_id=member.instance)
    request = m.LeaveGroupRequest(group_id=group, members=[leaving])
    answer = await link.call(ApiKey.LEAVE_GROUP, 5, request)
    check_code(answer.error_code or answer.members[0].error_code)


async def commit(link: Link, group: str, member: Membership, positions: Mapping[Part, int]) -> None:
    """OK only if all of them are."""
    request = m.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance,
        topics=[
            m.OffsetCommitRequest.OffsetCommitRequestTopic(
                name=part.topic,
                partitions=[
                    m.OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=part.number, committed_offset=offset
                    )
                ],
            )
            for part, offset in positions.items()
        ],
    )
    answer = await link.call(ApiKey.OFFSET_COMMIT, 8, request, timeout_s=LONG_S)
    for topic in answer.topics:
        for told in topic.partitions:
            check_code(told.error_code)


async def positions(link: Link, group: str, parts: Sequence[Part]) -> dict[Part, int]:
    """Where the group is; -1 where it has never been. Refused while a transaction is about to move it."""
    request = m.OffsetFetchRequest(
        group_id=group,
        topics=[
            m.OffsetFetchRequest.OffsetFetchRequestTopic(name=part.topic, partition_indexes=[part.number])
            for part in parts
        ],
        require_stable=True,
    )
    answer = await link.call(ApiKey.OFFSET_FETCH, 7, request, timeout_s=LONG_S)
    check_code(answer.error_code)
    found = {}
    for topic in answer.topics:
        for told in topic.partitions:
            check_code(told.error_code)
            found[Part(topic.name, told.partition_index)] = int(told.committed_offset)
    return found
