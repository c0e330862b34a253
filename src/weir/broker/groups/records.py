"""A consumer group as it is written down: enough to go on after a restart without dividing the work anew."""

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

from weir.broker.groups.group import Group
from weir.broker.groups.member import Member
from weir.model.errors import InvalidNameError, UnknownVersionError, WireError
from weir.model.topics import TopicName

_VERSION = 1


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """As of the last time that its shares were divided, or that its last member left."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    empty_since_ms: int
    members: tuple[Member, ...] = ()
    role: str = ""

    def put_into(self, group: Group) -> None:
        """The group goes on from here."""
        group.generation, group.protocol_type, group.protocol = self.generation, self.protocol_type, self.protocol
        group.empty_since_ms, group.role = self.empty_since_ms, self.role
        group.resume(self.members, self.leader)


def encode_group(group: Group) -> bytes:
    record = {
        "version": _VERSION,
        "generation": group.generation,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "leader": group.members.leader,
        "empty_since_ms": group.empty_since_ms,
        "members": [_member_record(member) for member in group.members],
        "role": group.role,
    }
    return json.dumps(record, separators=(",", ":")).encode()


def decode_group(data: bytes) -> GroupRecord:
    """WireError if it is none."""
    try:
        record = json.loads(data)
        if record["version"] != _VERSION:
            raise UnknownVersionError(f"a group record has version {record['version']}", hint="of a newer Weir?")
        return GroupRecord(
            int(record["generation"]),
            str(record["protocol_type"]),
            str(record["protocol"]),
            str(record["leader"]),
            int(record["empty_since_ms"]),
            tuple(_member(member) for member in record["members"]),
            str(record.get("role", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, InvalidNameError) as bad:
        raise WireError(f"a group record is malformed: {bad!r}") from bad


def _member_record(member: Member) -> dict[str, Any]:
    return {
        "id": member.id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "session_s": member.session_s,
        "rebalance_s": member.rebalance_s,
        "joined_ms": member.joined_ms,
        "protocols": [[name, b64encode(data).decode()] for name, data in member.protocols.items()],
        "assignment": b64encode(member.assignment).decode(),
        "parts": [str(part) for part in member.parts],
        "role": member.role,
    }


def _member(record: dict[str, Any]) -> Member:
    instance_id = record["instance_id"]
    member = Member(
        str(record["id"]),
        None if instance_id is None else str(instance_id),
        str(record["client_id"]),
        str(record["client_host"]),
        float(record["session_s"]),
        float(record["rebalance_s"]),
        {str(name): b64decode(data) for name, data in record["protocols"]},
        int(record["joined_ms"]),
        assignment=b64decode(record["assignment"]),
        parts=tuple(TopicName.parse(part) for part in record["parts"]),
        role=str(record.get("role", "")),
    )
    member.size = sum(len(name) + len(data) for name, data in member.protocols.items())
    return member
