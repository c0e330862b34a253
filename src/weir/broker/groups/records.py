"""A consumer group to and from what is written down of it: enough to go on without dividing the work anew."""

from collections.abc import Sequence

from weir.broker.groups.group import Group
from weir.broker.groups.member import Member
from weir.model.check import check
from weir.wire.snapshots import groups as records
from weir.wire.snapshots.groups import GroupRecord, MemberRecord


def encode_group(group: Group) -> bytes:
    return records.encode_group(
        GroupRecord(
            group.generation,
            group.protocol_type,
            group.protocol,
            group.members.leader,
            group.empty_since_ms,
            tuple(_record(member) for member in group.members),
            group.role,
        )
    )


def restore(group: Group, record: GroupRecord, departed: Sequence[str] = ()) -> None:
    """The group goes on from here, without members that departed later."""
    check(record.generation >= group.generation, "the generation of a group never goes back")
    group.generation, group.protocol_type, group.protocol = (
        record.generation,
        record.protocol_type,
        record.protocol,
    )
    group.empty_since_ms, group.role = record.empty_since_ms, record.role
    group.resume(tuple(_member(member) for member in record.members), record.leader, departed)


def _record(member: Member) -> MemberRecord:
    return MemberRecord(
        member.id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.session_s,
        member.rebalance_s,
        member.joined_ms,
        member.protocols,
        member.assignment,
        member.parts,
        member.role,
    )


def _member(record: MemberRecord) -> Member:
    member = Member(
        record.id,
        record.instance_id,
        record.client_id,
        record.client_host,
        record.session_s,
        record.rebalance_s,
        record.protocols,
        record.joined_ms,
        assignment=record.assignment,
        parts=record.parts,
        role=record.role,
    )
    member.size = sum(len(name) + len(data) for name, data in member.protocols.items())
    return member
