"""What is written down of consumer groups: enough to go on without dividing the work anew. Groups live in the
shard of their name; large ones are encoded in turns of the loop."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weir.broker.api import GroupState
from weir.broker.coordinator_shards import CoordinatorShard
from weir.broker.groups.group import Group
from weir.broker.groups.member import Member, StoredMember
from weir.model.check import check
from weir.model.errors import NotOwnerError, WeirError
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.wire.snapshots import groups as records
from weir.wire.snapshots.groups import GroupRecord, MemberRecord

_RECORD = "group/"
#: Members that left after their group's record was written. Written with the next record of the group: none.
_DEPARTURE = "departure/"
#: Members, and bytes of what they say and have, that are encoded in one turn of the loop.
_MEMBERS_PER_TURN = 128
_BYTES_PER_TURN = 512 * 1024


def encode_group(group: Group) -> bytes:
    return records.encode_group(replace(_head(group), members=tuple(map(_record, group.members))))


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


def read_groups(shard: CoordinatorShard) -> Mapping[str, GroupRecord]:
    """The groups of a shard, by their names."""
    return {
        key.removeprefix(_RECORD): records.decode_group(shard.state.get(key) or b"")
        for key in shard.state.keys(_RECORD)
    }


def read_departures(shard: CoordinatorShard) -> dict[str, list[str]]:
    """Ids of members that left, by their group."""
    found: dict[str, list[str]] = {}
    for key in shard.state.keys(_DEPARTURE):
        group, member_id = records.decode_departure(shard.state.get(key) or b"")
        found.setdefault(group, []).append(member_id)
    return found


def delete_record(shard: CoordinatorShard, group: str) -> None:
    shard.state.delete(_RECORD + group)


def delete_departures(shard: CoordinatorShard, group: str, members: Sequence[str]) -> None:
    for member_id in members:
        shard.state.delete(_departure_key(group, member_id))


@dataclass(slots=True)
class _Write:
    """A group as it was when it was to be written down. `departures`: those that this record makes superfluous."""

    group: Group
    head: GroupRecord
    members: list[StoredMember]
    departures: list[str]
    done: "asyncio.Future[WeirError | None]"


class GroupRecords:
    """Writes groups down, each in the order in which it changed. What is set before a flush is durable with it."""

    def __init__(self, clock: Clock, tasks: TaskScope) -> None:
        self._clock = clock
        self._tasks = tasks
        #: Groups of which a large record is being written.
        self._writing: set[Group] = set()
        #: What these are to be written down as next; a later state replaces one that waits.
        self._next: dict[Group, _Write] = {}

    def store(self, shard: CoordinatorShard, group: Group) -> "asyncio.Future[WeirError | None]":
        """Write down all of the group, as it is now. Answers, once that is durable, what went wrong."""
        write = self._write_of(group)
        if group in self._writing:
            return write.done
        if _is_small(write.members):
            del self._next[group]
            _put(shard, write)
            return self._tasks.spawn(_flushed(shard), f"store {group.name}")
        self._writing.add(group)
        self._tasks.spawn(self._write_all(shard, group), f"store {group.name}")
        return write.done

    def store_departures(
        self, shard: CoordinatorShard, group: Group, members: Sequence[str]
    ) -> "asyncio.Future[WeirError | None]":
        """A few bytes per member, however large the group is; departures of one moment share a write."""
        for member_id in members:
            data = records.encode_departure(group.name, member_id)
            shard.state.put(_departure_key(group.name, member_id), data)
        group.departures += members
        return self._tasks.spawn(_flushed(shard), f"store departures from {group.name}")

    def _write_of(self, group: Group) -> _Write:
        members = [StoredMember.of(member) for member in group.members]
        departures, group.departures = group.departures, []
        write = self._next.get(group)
        if write is None:
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            write = self._next[group] = _Write(group, _head(group), members, departures, done)
        else:
            write.head, write.members = _head(group), members
            write.departures += departures
        return write

    async def _write_all(self, shard: CoordinatorShard, group: Group) -> None:
        try:
            while (write := self._next.pop(group, None)) is not None:
                try:
                    await self._write(shard, write)
                finally:
                    write.done.cancel()
        finally:
            self._writing.discard(group)
            left = self._next.pop(group, None)
            if left is not None:
                left.done.cancel()

    async def _write(self, shard: CoordinatorShard, write: _Write) -> None:
        members = spent = 0
        for member in write.members:
            if member.data is not None:
                continue
            members, spent = members + 1, spent + member.size
            member.encode()
            if members >= _MEMBERS_PER_TURN or spent >= _BYTES_PER_TURN:
                await self._clock.sleep(0)
                members = spent = 0
        try:
            if write.group.state is GroupState.DEAD:
                raise NotOwnerError(f"group {write.group.title!r} has ended")
            _put(shard, write)
        except WeirError as failed:
            failure: WeirError | None = failed
        else:
            failure = await _flushed(shard)
        if not write.done.done():
            write.done.set_result(failure)


def _is_small(members: Sequence[StoredMember]) -> bool:
    new = [member for member in members if member.data is None]
    return len(new) <= _MEMBERS_PER_TURN and sum(member.size for member in new) <= _BYTES_PER_TURN


def _put(shard: CoordinatorShard, write: _Write) -> None:
    group = write.group.name
    data = records.encode_group_of(write.head, [member.encode() for member in write.members])
    shard.state.put(_RECORD + group, data)
    delete_departures(shard, group, write.departures)


def _departure_key(group: str, member_id: str) -> str:
    return f"{_DEPARTURE}{group}/{member_id}"


async def _flushed(shard: CoordinatorShard) -> WeirError | None:
    try:
        await shard.state.flush()
    except WeirError as failed:
        return failed
    return None


def _head(group: Group) -> GroupRecord:
    """The group without its members."""
    return GroupRecord(
        group.generation,
        group.protocol_type,
        group.protocol,
        group.members.leader,
        group.empty_since_ms,
        role=group.role,
    )


def _record(member: Member) -> MemberRecord:
    return StoredMember.of(member).record


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
