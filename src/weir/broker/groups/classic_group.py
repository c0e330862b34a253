"""One consumer group: who is in, which generation it is, who has which share.

Everything here is decided at once, in plain functions; what a member must wait for is a future. `_tick` is called
when the next deadline may have passed. What one member asks costs the same however many others there are; what
concerns all of them happens once per generation, and their answers are given in turns of the loop.

What is written down of consumer groups: enough to go on without dividing the work anew. Groups live in the
shard of their name; large ones are encoded in turns of the loop.

A timer that is set for the earliest of many moments, and set anew only when an earlier one comes; and deadlines
of many objects, of which the earliest is known without a scan.

How long a consumer group waits for its members to join.

Which way of dividing a group's work all of its members know.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weir.broker.api.groups import GroupInfo, GroupState, Joined, JoinRequest, Synced, SyncRequest
from weir.broker.coordination.shards import CoordinatorShard
from weir.broker.groups.group import GroupEvent, GroupSettings, next_state
from weir.broker.groups.members import NEVER, Alarm, Member, Replies, Roster, StoredMember, answered, failure_of
from weir.model.check import check
from weir.model.errors import (
    GroupFullError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    MemberFencedError,
    MemberIdRequiredError,
    NotAllowedError,
    NotOwnerError,
    RebalanceInProgressError,
    UnknownMemberError,
    WeirError,
)
from weir.model.topics import TopicName, full_name
from weir.runtime.adjustable_clock import liveness
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.wire.snapshots import groups as records
from weir.wire.snapshots.groups import GroupRecord, MemberRecord


def chosen(members: Roster) -> str:
    """Each votes for the one that it likes best of those that all know; of equals, the first voted for wins."""
    votes: dict[str, int] = {}
    for member in members:
        favourite = next(filter(members.all_know, member.protocols))
        votes[favourite] = votes.get(favourite, 0) + 1
    return max(votes, key=lambda name: votes[name])


def check_fits(request: JoinRequest, protocol_type: str, members: Roster) -> None:
    """InconsistentGroupProtocolError unless there is a way that all members and this request know. One that is a
    member already counts with what it said before: as with Kafka, it leaves first to change its mind."""
    if not request.protocol_type or not request.protocols:
        raise InconsistentGroupProtocolError("a member names a protocol type, and at least one protocol")
    if not members:
        return
    if request.protocol_type != protocol_type:
        raise InconsistentGroupProtocolError(f"the group is of type {protocol_type!r}")
    if not any(map(members.all_know, request.protocols)):
        known = ", ".join(members.common())[:200]
        raise InconsistentGroupProtocolError(f"the members know {known}")


class Gathering:
    """Members are awaited until `by`. One that was empty assembles first: it waits a little for others, and a
    little more when some came meanwhile, but not for longer than a rebalance may take."""

    def __init__(self) -> None:
        self.by = NEVER
        self.assembling = False
        self._delay_s = 0.0
        self._left_s = 0.0
        self._came = False

    def begin(self, now: float, wait_s: float, *, delay_s: float | None = None) -> None:
        """Wait for all members, for so long at most. `delay_s`: the group was empty, and shall assemble."""
        self.assembling = delay_s is not None and min(delay_s, wait_s) > 0
        if delay_s is None:
            self.by = now + wait_s
            return
        self._delay_s, self._left_s = delay_s, wait_s
        self._wait_a_little(now)

    def _wait_a_little(self, now: float) -> None:
        little_s = min(self._delay_s, self._left_s)
        self._left_s -= little_s
        self.by = now + little_s
        self._came = False

    def somebody_came(self) -> None:
        self._came = True

    def is_over(self, now: float) -> bool:
        """Whether those who have not come are to be given up."""
        if now < self.by:
            return False
        if self.assembling and self._came and self._left_s > 0:
            self._wait_a_little(now)
            return False
        return True

    def end(self) -> None:
        self.by = NEVER
        self.assembling = False


log = logging.getLogger(__name__)

EMPTY, JOINING, SYNCING, STABLE, DEAD = GroupState


class Group:
    """Made by the coordinator. `store` writes the group down, and answers, once that is durable, what went wrong;
    `store_departures` does so for the stored ids of members that are gone; `changed` is called when members or
    their shares have changed; `changed_some` when some members have gone (by their ids) or have other ids."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        settings: GroupSettings,
        *,
        store: "Callable[[Group], asyncio.Future[WeirError | None]]",
        store_departures: "Callable[[Group, Sequence[str]], asyncio.Future[WeirError | None]]",
        changed: "Callable[[Group], None]",
        changed_some: "Callable[[Group, Sequence[str], Sequence[Member]], None]",
        role: str = "",
    ) -> None:
        self.name = name
        #: Its name as people see it.
        self.title = full_name(name)
        #: Who made it; nobody if that was not noted.
        self.role = role
        self.state = EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.members = Roster(self.title)
        #: Stored ids of members whose departure is written beside the group's record: the coordinator's.
        self.departures: list[str] = []
        #: Since when it has had no members, in milliseconds since 1970.
        self.empty_since_ms = clock.wall_ms()
        self._clock = clock
        #: Whether members live is asked of this one.
        self._living = liveness(clock)
        self._settings = settings
        self._store_now = store
        self._store_departures = store_departures
        #: Stored ids of members that are gone, as far as their departure is not written down.
        self._departed: list[str] = []
        self._changed = changed
        self._changed_some = changed_some
        self._gathering = Gathering()
        self._replies = Replies()
        #: Members that have not joined the generation to come; known while the group is JOINING.
        self._awaited: set[Member] = set()
        #: When members that have not asked for their share are given up.
        self._sync_by = NEVER
        self._dividing = -1  # the generation whose shares are being made durable
        self._alarm = Alarm(self._living, self._tick)

    # --- joining ----------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, make_id: Callable[[], str]) -> "asyncio.Future[Joined]":
        """MemberIdRequiredError: with the id to come again with."""
        self._check_alive()
        static = self.members.static(request.instance_id)
        check_fits(request, self.protocol_type, self.members)
        self._check_said(request, {self.members.get(request.member_id), static})
        if request.member_id:
            return self._join_as(request)
        if static is not None:
            return self._replace(static, request, make_id())
        self._check_room()
        member_id = make_id()
        if request.id_first and request.instance_id is None:
            until = self._living.monotonic() + request.session_s
            self.members.given.set(member_id, until)
            self._alarm.at(until)
            raise MemberIdRequiredError(f"join again as {member_id}", member_id=member_id)
        return self._add(member_id, request)

    def _join_as(self, request: JoinRequest) -> "asyncio.Future[Joined]":
        if request.instance_id is None and self.members.given.remove(request.member_id):
            return self._add(request.member_id, request)
        member = self._find(request.member_id, request.instance_id)
        same = member.says_the_same(request.protocols)
        # The leader comes again to have the work divided anew: it has seen something change.
        if (self.state is SYNCING and same) or (
            self.state is STABLE and same and member.id != self.members.leader
        ):
            self.members.update(member, request)
            self._touch(member)
            return answered(self._joined(member))
        self.members.update(member, request)
        waiter = self._await_join(member)
        self._touch(member)
        self._rebalance(f"{member.id} joined again")
        return waiter

    def _add(self, member_id: str, request: JoinRequest) -> "asyncio.Future[Joined]":
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_s,
            request.rebalance_s,
            dict(request.protocols),
            self._clock.wall_ms(),
            may_skip=request.may_skip,
            size=request.size,
            role=request.role,
            topics=tuple(request.topics),
        )
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members.add(member)
        self._give_until(member, self._settings.new_member_s)
        waiter = self._await_join(member)
        self._gathering.somebody_came()
        self._rebalance(f"{member_id} joined")
        return waiter

    def _replace(self, member: Member, request: JoinRequest, member_id: str) -> "asyncio.Future[Joined]":
        """A static member is back under a new id: it has what its former self had, which is fenced."""
        member.end(self._replies, MemberFencedError(f"{member.instance_id!r} is {member_id} now"))
        leader_before, id_before = self.members.leader, member.id
        self.members.rename(member, member_id)
        likes_the_same = list(member.protocols) == list(request.protocols)
        self.members.update(member, request)
        self._touch(member)
        if self.state is STABLE and (likes_the_same or chosen(self.members) == self.protocol):
            self._changed_some(self, [id_before], [member])
            return self._keep_share(member, leader_before)
        waiter = self._await_join(member)
        self._rebalance(f"the static member {member.instance_id} came back as {member_id}")
        return waiter

    def _keep_share(self, member: Member, leader_before: str) -> "asyncio.Future[Joined]":
        """No need to divide anew. One that cannot be told so must not take itself for the leader."""
        waiter: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        answer = self._joined(member, skip=True) if member.may_skip else self._joined(member, leader=leader_before)

        def stored(done: "asyncio.Future[WeirError | None]") -> None:
            if waiter.done():
                return
            failure = failure_of(done)
            if failure is None:
                waiter.set_result(answer)
            else:
                waiter.set_exception(failure)

        self._store().add_done_callback(stored)
        return waiter

    def _joined(self, member: Member, *, leader: str | None = None, skip: bool = False) -> Joined:
        leads = member.id == self.members.leader and leader is None
        members = [(m.id, m.instance_id, bytes(m.protocols[self.protocol])) for m in self.members] if leads else []
        return Joined(
            self.generation,
            self.protocol_type,
            self.protocol,
            self.members.leader if leader is None else leader,
            member.id,
            members,
            skip and leads,
        )

    def _await_join(self, member: Member) -> "asyncio.Future[Joined]":
        self._awaited.discard(member)
        return member.await_join(self._replies, _again())

    # --- gathering --------------------------------------------------------------------------------------

    def _rebalance(self, why: str) -> None:
        """Await everyone anew, unless that is under way."""
        if self.state is not JOINING:
            log.info("group %s, generation %s, is divided anew: %s", self.title, self.generation, why)
            for member in self.members:
                member.owes_sync = False
                if self.state is SYNCING:
                    member.assignment = b""  # what it had is nobody's by now
                if member.sync is not None:
                    self._touch(member)
                    member.end_sync(
                        self._replies, RebalanceInProgressError(f"group {self.title!r} is divided anew")
                    )
            self._awaited = {member for member in self.members if member.join is None}
            was_empty = self.state is EMPTY
            self._move(GroupEvent.REBALANCE)
            self._sync_by = NEVER
            self._await_all(delay_s=self._settings.initial_delay_s if was_empty else None)
        self._gather()

    def _await_all(self, *, delay_s: float | None = None) -> None:
        wait_s = max((m.rebalance_s for m in self.members), default=0.0)
        self._gathering.begin(self._living.monotonic(), wait_s, delay_s=delay_s)
        self._alarm.at(self._gathering.by)

    def _gather(self) -> None:
        """Go on if everyone is there."""
        all_here = not self.members.given and not self._awaited
        if self.state is JOINING and not self._gathering.assembling and all_here:
            self._gathered()

    def _gathered(self) -> None:
        """Those that have not come are out, but static ones, whose share waits for them."""
        for member in self.members:
            gone = member.join is None or (member.new and member.join.cancelled())
            if gone and member.instance_id is None:
                self._remove(member)
        here = [m for m in self.members if m.join is not None]
        if self.members and not here:
            self._await_all()
            return
        self._gathering.end()
        self._awaited.clear()
        self.generation += 1
        if not here:
            self._deserted()
            return
        leader = self.members.get(self.members.leader)
        if leader is None or leader.join is None:
            self.members.leader = here[0].id
        self.protocol = chosen(self.members)
        self._move(GroupEvent.GATHERED)
        self._sync_by = self._living.monotonic() + max(m.rebalance_s for m in self.members)
        self._alarm.at(self._sync_by)
        for member in here:
            member.new = False
            member.owes_sync = True
            self._touch(member)
            member.end_join(self._replies, self._joined(member))

    def _deserted(self) -> None:
        self._move(GroupEvent.DESERTED)
        self.protocol = ""
        self.empty_since_ms = self._clock.wall_ms()
        self._store()
        self._changed(self)

    # --- dividing ---------------------------------------------------------------------------------------

    def sync(self, request: SyncRequest) -> "asyncio.Future[Synced]":
        """The member's share, once the leader has brought it."""
        member = self._current(request.member_id, request.generation, request.instance_id)
        for said, is_so in ((request.protocol_type, self.protocol_type), (request.protocol, self.protocol)):
            if said is not None and said != is_so:
                raise InconsistentGroupProtocolError(
                    f"group {self.title!r} goes by {is_so!r}, not by {said[:80]!r}"
                )
        if self.state is JOINING:
            raise RebalanceInProgressError(f"group {self.title!r} is divided anew")
        self._touch(member)
        if self.state is STABLE:
            member.owes_sync = False
            return answered(self._synced(member))
        if member.id == self.members.leader and self._dividing != self.generation:
            self._check_size(request)
        waiter = member.await_sync(self._replies, _again())
        if member.id == self.members.leader and self._dividing != self.generation:
            self._divide(request)
        return waiter

    def _check_said(self, request: JoinRequest, itself: Iterable[Member | None]) -> None:
        """`itself`: the member as it is so far, under one id or two."""
        settings = self._settings
        if request.size > settings.max_member_bytes:
            raise NotAllowedError(f"a member may say {settings.max_member_bytes} bytes of itself")
        others = self.members.said_bytes - sum(member.size for member in itself if member is not None)
        if request.size + others > settings.max_said_bytes:
            raise GroupFullError(f"the members of group {self.title!r} say too much of themselves")

    def _check_size(self, request: SyncRequest) -> None:
        if sum(map(len, request.assignments.values())) > self._settings.max_assigned_bytes:
            raise NotAllowedError(f"shares may have {self._settings.max_assigned_bytes} bytes in all")

    def _divide(self, request: SyncRequest) -> None:
        generation = self._dividing = self.generation
        left = self._settings.max_shown_parts
        for member in self.members:
            member.assignment = bytes(request.assignments.get(member.id, b""))
            self.members.show(member, tuple(dict.fromkeys(request.parts.get(member.id, ())))[:left], member.topics)
            left -= len(member.parts)
        self._store().add_done_callback(lambda stored: self._divided(generation, failure_of(stored)))

    def _divided(self, generation: int, failure: WeirError | None) -> None:
        """The shares are durable, unless something has failed; the group may have moved on."""
        if self._dividing == generation:
            self._dividing = -1
        if self.state is not SYNCING or self.generation != generation:
            return
        if failure is not None:
            for member in self.members:
                if member.sync is not None:
                    self._touch(member)
                    member.end_sync(self._replies, failure)
            self._rebalance(f"the shares could not be stored: {failure}")
            return
        self._move(GroupEvent.DIVIDED)
        for member in self.members:
            if member.sync is not None:
                self._touch(member)
                member.end_sync(self._replies, self._synced(member))
        self._changed(self)

    def _synced(self, member: Member) -> Synced:
        return Synced(self.protocol_type, self.protocol, member.assignment)

    # --- being in, leaving --------------------------------------------------------------------------------

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None) -> None:
        """RebalanceInProgressError: the member shall join again."""
        member = self._current(member_id, generation, instance_id)
        self._touch(member)
        if self.state is JOINING:
            raise RebalanceInProgressError(f"group {self.title!r} is divided anew")

    def leave(
        self, members: Sequence[tuple[str, str | None]]
    ) -> "tuple[list[WeirError | None], asyncio.Future[WeirError | None] | None]":
        """Members (id, instance id; an instance alone is enough) go. Answers what went wrong with each, and when
        the departures are durable; None if nothing has to be written for it."""
        results: list[WeirError | None] = []
        gone: list[str] = []
        for member_id, instance_id in members:
            try:
                gone += self._leave(member_id, instance_id)
                results.append(None)
            except WeirError as refused:
                results.append(refused)
        if gone:
            self._left(gone, f"{len(gone)} members left")
        return results, self._write_departures()

    def _leave(self, member_id: str, instance_id: str | None) -> list[str]:
        """Answers the id of the member that is gone, if it was one."""
        if instance_id is None and self.members.given.remove(member_id):
            self._gather()
            return []
        static = self.members.static(instance_id)
        if static is not None and not member_id:
            member_id = static.id
        self._remove(self._find(member_id, instance_id))
        return [member_id]

    def _remove(self, member: Member) -> None:
        self.members.remove(member)
        self._awaited.discard(member)
        member.end(self._replies, UnknownMemberError(f"{member.id} is no longer in group {self.title!r}"))
        if member.stored_id:
            self._departed.append(member.stored_id)

    def _write_departures(self) -> "asyncio.Future[WeirError | None] | None":
        """The next coordinator shall not wait for members that are gone. What the whole group was written down
        with since they went is not written twice."""
        if not self._departed:
            return None
        departed, self._departed = self._departed, []
        return self._store_departures(self, departed)

    def _store(self) -> "asyncio.Future[WeirError | None]":
        """Write down all of the group, as it is now."""
        self._departed = []
        for member in self.members:
            member.stored_id = member.id
        return self._store_now(self)

    def _left(self, gone: Sequence[str], why: str) -> None:
        if self.state is JOINING:
            self._gather()
        else:
            self._rebalance(why)
        self._changed_some(self, gone, ())

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, *, transactional: bool = False
    ) -> None:
        """Raises unless the member may commit positions now. Whoever is no member may while there are none;
        a transaction that names none may always, since its producer is fenced by other means."""
        if self.state is EMPTY and generation < 0:
            return
        if generation < 0 and not member_id and instance_id is None:
            if transactional:
                return
            raise UnknownMemberError(f"group {self.title!r} has members, and only these may commit")
        member = self._current(member_id, generation, instance_id)
        if self.state is SYNCING and not transactional:
            raise RebalanceInProgressError(f"group {self.title!r} is divided anew")
        self._touch(member)

    # --- who asks ---------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self.state is DEAD:
            raise UnknownMemberError(f"group {self.title!r} has ended", hint="join anew")

    def _find(self, member_id: str, instance_id: str | None) -> Member:
        self._check_alive()
        return self.members.find(member_id, instance_id)

    def _current(self, member_id: str, generation: int, instance_id: str | None) -> Member:
        member = self._find(member_id, instance_id)
        if generation != self.generation:
            raise IllegalGenerationError(f"group {self.title!r} is at generation {self.generation}")
        return member

    def _check_room(self) -> None:
        if len(self.members) + len(self.members.given) >= self._settings.max_members:
            raise GroupFullError(f"group {self.title!r} has {self._settings.max_members} members")

    @property
    def unused(self) -> bool:
        """Whether nothing would be lost if it were forgotten: it had no members, and none is about to come."""
        return self.is_idle() and not self.generation

    def is_idle(self) -> bool:
        """Whether it has no members, and none is about to come."""
        return self.state is EMPTY and not self.members.given

    def recheck(self, may_consume: Callable[[str, TopicName], bool]) -> bool:
        """Members claim only what their roles may consume; answers whether some claimed more."""
        found = False
        for member in self.members:
            parts = tuple(part for part in member.parts if may_consume(member.role, part))
            found |= len(parts) < len(member.parts)
            topics = tuple(topic for topic in member.topics if may_consume(member.role, topic))
            self.members.show(member, parts, topics)
        return found

    def info(self) -> GroupInfo:
        members = [m.info(self.protocol) for m in self.members]
        return GroupInfo(self.name, self.state, self.protocol_type, self.protocol, self.generation, members)

    # --- time, beginning and end ----------------------------------------------------------------------------

    def _move(self, event: GroupEvent) -> None:
        self.state = next_state(self.state, event)

    def _touch(self, member: Member) -> None:
        """It has said something."""
        if not member.new:
            self._give_until(member, member.session_s)

    def _give_until(self, member: Member, seconds: float) -> None:
        """It is given up unless it says something for so long."""
        member.deadline = self._living.monotonic() + seconds
        self.members.deadlines.set(member, member.deadline)
        self._alarm.at(member.deadline)

    def _tick(self) -> None:
        now = self._living.monotonic()
        self.members.given.pop_due(now)
        # Those that wait have no deadline from here on: they get one with their answer.
        silent = {member: None for member in self.members.deadlines.pop_due(now) if member.silent(now)}
        if now >= self._sync_by:
            self._sync_by = NEVER
            silent.update((member, None) for member in self.members if member.owes_sync)
        for member in silent:
            self._remove(member)
        if silent:
            self._left([member.id for member in silent], f"{len(silent)} members said nothing")
        self._gather()
        if self.state is JOINING and self._gathering.is_over(now):
            self._gathered()
        self._write_departures()
        self._alarm.at(self._next_deadline())

    def _next_deadline(self) -> float:
        first = self.members.deadlines.first(), self.members.given.first()
        return min(*first, self._gathering.by, self._sync_by)

    def resume(self, members: Sequence[Member], leader: str, departed: Sequence[str] = ()) -> None:
        """Go on as it was written down: with these members, which have their shares. `departed`: those of them
        that went later; the others join again, to divide what these had."""
        self.members.clear(members, leader)
        if members:
            self.state = STABLE
        for member in members:
            member.new = False
            member.stored_id = member.id
            self._touch(member)
        gone = [found for member_id in departed if (found := self.members.get(member_id)) is not None]
        for member in gone:
            self.members.remove(member)
        if gone:
            self._rebalance(f"{len(gone)} members left before the coordinator moved here")

    def end(self, why: WeirError) -> None:
        """It is deleted, or another broker's."""
        if self.state is DEAD:
            return
        self._move(GroupEvent.END)
        self._alarm.stop()
        for member in self.members:
            member.end(self._replies, why)
        self.members.clear()
        self._awaited.clear()
        self._changed(self)


def _again() -> WeirError:
    return RebalanceInProgressError("the member asked again")


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
