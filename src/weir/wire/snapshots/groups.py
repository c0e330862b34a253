"""A consumer group as it is written down, and the partitions that it has positions on. JSON.

What a consumer group said when it last placed a cursor.

version u8 | offset i64 | where the cursor was placed i64 | leader epoch i32 | when, in ms, i64 | metadata

Version 2, for groups whose coordinator may be elsewhere, has the order of the placing (i64) before the metadata.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any

from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset
from weir.wire.snapshots.fields import Reader, check_version, dump, each, load, seconds, text, topic, whole

_VERSION = 1


@dataclass(frozen=True, slots=True)
class MemberRecord:
    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_s: float
    rebalance_s: float
    joined_ms: int
    protocols: Mapping[str, bytes]
    assignment: bytes = b""
    parts: tuple[TopicName, ...] = ()
    role: str = ""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """As of the last time that its shares were divided, or that its last member left. Members that left since have
    departure records."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    empty_since_ms: int
    members: tuple[MemberRecord, ...] = ()
    role: str = ""


def encode_group(group: GroupRecord) -> bytes:
    return encode_group_of(group, [encode_member(member) for member in group.members])


def encode_group_of(group: GroupRecord, members: Iterable[bytes]) -> bytes:
    """The group with these members, which are encoded already, instead of its own."""
    head = dump(
        {
            "version": _VERSION,
            "generation": group.generation,
            "protocol_type": group.protocol_type,
            "protocol": group.protocol,
            "leader": group.leader,
            "empty_since_ms": group.empty_since_ms,
            "role": group.role,
        }
    )
    return b"".join((head[:-1], b',"members":[', b",".join(members), b"]}"))


def decode_group(data: bytes) -> GroupRecord:
    return load(data, "a group record", _group)


def _group(fields: Any) -> GroupRecord:
    check_version(fields["version"], _VERSION, "a group record")
    return GroupRecord(
        whole(fields["generation"]),
        text(fields["protocol_type"]),
        text(fields["protocol"]),
        text(fields["leader"]),
        whole(fields["empty_since_ms"]),
        tuple(_member(member) for member in each(fields["members"])),
        text(fields.get("role", "")),
    )


def encode_member(member: MemberRecord) -> bytes:
    """Base64 needs no escapes, so that large values are not searched for them."""
    head = dump(
        {
            "id": member.id,
            "instance_id": member.instance_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "session_s": member.session_s,
            "rebalance_s": member.rebalance_s,
            "joined_ms": member.joined_ms,
            "parts": [str(part) for part in member.parts],
            "role": member.role,
        }
    )
    protocols = (
        b"".join((b"[", dump(name), b',"', b64encode(data), b'"]')) for name, data in member.protocols.items()
    )
    assignment = b64encode(member.assignment)
    said = b",".join(protocols)
    return b"".join((head[:-1], b',"protocols":[', said, b'],"assignment":"', assignment, b'"}'))


def _member(fields: Any) -> MemberRecord:
    instance_id = fields["instance_id"]
    return MemberRecord(
        text(fields["id"]),
        None if instance_id is None else text(instance_id),
        text(fields["client_id"]),
        text(fields["client_host"]),
        seconds(fields["session_s"]),
        seconds(fields["rebalance_s"]),
        whole(fields["joined_ms"]),
        {text(name): b64decode(text(data)) for name, data in each(fields["protocols"])},
        b64decode(text(fields["assignment"])),
        tuple(map(topic, each(fields["parts"]))),
        text(fields.get("role", "")),
    )


# --- which members left ------------------------------------------------------------------------------------------


def encode_departure(group: str, member_id: str) -> bytes:
    return dump({"version": _VERSION, "group": group, "member": member_id})


def decode_departure(data: bytes) -> tuple[str, str]:
    """The group, and the id of the member that left it."""
    return load(data, "a member's departure", _departure)


def _departure(fields: Any) -> tuple[str, str]:
    check_version(fields["version"], _VERSION, "a member's departure")
    return text(fields["group"]), text(fields["member"])


# --- where a group has positions ---------------------------------------------------------------------------------


def encode_parts(parts: Iterable[TopicName]) -> bytes:
    return dump([str(part) for part in parts])


def decode_parts(data: bytes) -> list[TopicName]:
    return load(data, "the list of a group's partitions", lambda found: [topic(name) for name in each(found)])


# --- what a transaction holds ready ------------------------------------------------------------------------------


def encode_pending(of_round: int, positions: Mapping[TopicName, CommittedOffset]) -> bytes:
    """Which of its producer's transactions it is, and where it will place the group."""
    fields = [[str(part), at.offset, at.leader_epoch, at.metadata] for part, at in positions.items()]
    return dump({"version": _VERSION, "round": of_round, "positions": fields})


def decode_pending(data: bytes) -> tuple[int, dict[TopicName, CommittedOffset]]:
    return load(data, "positions that a transaction holds ready", _pending)


def _pending(fields: Any) -> tuple[int, dict[TopicName, CommittedOffset]]:
    check_version(fields["version"], _VERSION, "positions that a transaction holds ready")
    positions = {
        topic(part): CommittedOffset(whole(offset), whole(leader), text(metadata))
        for part, offset, leader, metadata in each(fields["positions"])
    }
    return whole(fields["round"]), positions


_HEADER = Struct("<Bqqiq")
_ORDER = Struct("<q")
_ORDERED = 2
#: An order is the coordinator's epoch, and below it, in so many bits, a number that the coordinator counts.
ORDER_BITS = 40


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """`placed`: the offset that the cursor stood at. It is elsewhere if somebody else has moved it since, and then
    what the group said does not hold any more. `order`: of all placings of the group; 0 where there is none."""

    said: CommittedOffset
    placed: int
    order: int = 0


def encode_position(position: StoredPosition) -> bytes:
    said = position.said
    version = _ORDERED if position.order else _VERSION
    header = _HEADER.pack(version, said.offset, position.placed, said.leader_epoch, said.commit_ms)
    return header + (_ORDER.pack(position.order) if position.order else b"") + said.metadata.encode()


def decode_position(data: bytes, what: str = "a group's position") -> StoredPosition:
    reader = Reader(data, what)
    version, offset, placed, leader_epoch, commit_ms = reader.take(_HEADER)
    order = 0
    if version == _ORDERED:
        (order,) = reader.take(_ORDER)
        reader.require(order > 0)
    else:
        reader.version(version, _VERSION)
    reader.require(placed >= 0)
    return StoredPosition(CommittedOffset(offset, leader_epoch, reader.text(), commit_ms), placed, order)
