"""The coordinator of consumer groups: finds the group, asks it, and keeps what must outlive this broker.

Groups live in the shard of their name (`weir.broker.coordinator_shards`), all of them loaded with it. When the
shard is lost, so are its groups here; the broker that has it next goes on with them as they were written down.

Members of consumer groups show on topics that their roles may consume: asked anew whenever grants change.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from weir.broker.api.broker import Owner
from weir.broker.api.groups import GroupInfo, GroupState, Joined, JoinRequest, Synced, SyncRequest
from weir.broker.api.security import Guard
from weir.broker.context import GroupAssignments, Share
from weir.broker.coordination.shards import CoordinatorShard, CoordinatorShards
from weir.broker.groups.classic_group import (
    Group,
    GroupRecords,
    delete_departures,
    delete_record,
    read_departures,
    read_groups,
    restore,
)
from weir.broker.groups.group import GroupClaims, GroupSettings
from weir.broker.groups.group_offsets import GroupOffsets
from weir.broker.groups.members import Member
from weir.broker.standalone import OpenGuard
from weir.model.errors import (
    GroupNotEmptyError,
    IllegalGenerationError,
    InvalidGroupError,
    NotAuthorisedError,
    NotOwnerError,
    SessionTimeoutError,
    TooManyError,
    UnknownGroupError,
    UnknownMemberError,
    WeirError,
)
from weir.model.registry import Action
from weir.model.topics import TopicName, full_name
from weir.model.transactions import CommittedOffset
from weir.runtime.interfaces import Clock, Runtime
from weir.runtime.tasks import TaskScope

#: So many groups, then it is the others' turn.
_GROUPS_PER_TURN = 200


async def follow_access(
    guard: Guard, clock: Clock, groups: Callable[[], Iterable[Group]], show: Callable[[Group], None]
) -> None:
    """For ever."""

    def may_consume(role: str, topic: TopicName) -> bool:
        try:
            guard.check(role, topic, Action.CONSUME)
        except NotAuthorisedError:
            return False
        return True

    seen = guard.revision
    while True:
        seen = await guard.change(seen)
        for number, group in enumerate(list(groups()), 1):
            if group.recheck(may_consume):
                show(group)
            if not number % _GROUPS_PER_TURN:
                await clock.sleep(0)


log = logging.getLogger(__name__)

_MAX_NAME_BYTES = 1024
#: So much of what a client calls itself is in the ids of its members: a protocol may have no room for more.
_MAX_PREFIX = 250


class GroupCoordinator:
    """`start`, then `close`, before the broker is closed."""

    def __init__(
        self,
        runtime: Runtime,
        shards: CoordinatorShards,
        offsets: GroupOffsets,
        members: GroupAssignments,
        settings: GroupSettings | None = None,
        *,
        topics_read: Callable[[GroupInfo], Collection[TopicName] | None] = lambda _: None,
        guard: Guard | None = None,
    ) -> None:
        """`topics_read`: which topics a group's members read, told by who knows their protocol; None if that
        cannot be told."""
        self.offsets = offsets
        self._topics_read = topics_read
        self.settings = settings or GroupSettings()
        self._runtime = runtime
        self._clock = runtime.clock
        self._shards = shards
        self._members = members
        self._guard = guard or OpenGuard()
        self._groups: dict[CoordinatorShard, dict[str, Group]] = {}
        #: How many of these each role has made.
        self._made: dict[CoordinatorShard, Counter[str]] = {}
        #: Not before then is a group worth looking at again, to see whether its positions have expired.
        self._kept_until_ms: dict[str, int] = {}
        self._tasks = TaskScope("groups")
        self._records = GroupRecords(self._clock, self._tasks)

    def start(self) -> None:
        self._tasks.spawn(self._sweep(), "sweep")
        self._tasks.spawn(follow_access(self._guard, self._clock, self._loaded, self._show), "access")

    def _loaded(self) -> list[Group]:
        return [group for groups in self._groups.values() for group in groups.values()]

    async def close(self) -> None:
        for shard in list(self._groups):
            self._lost(shard)
        await self._tasks.close()

    # --- membership -------------------------------------------------------------------------------------

    async def join(self, name: str, request: JoinRequest) -> Joined:
        """Waits until everyone has joined."""
        _check_name(name)
        if not self.settings.min_session_s <= request.session_s <= self.settings.max_session_s:
            raise SessionTimeoutError(
                f"a member may be silent for {self.settings.min_session_s} to {self.settings.max_session_s} s, "
                f"not for {request.session_s}"
            )
        shard = await self._shard(name)
        group = self._groups[shard].get(name)
        if group is None:
            if request.member_id:
                raise UnknownMemberError(f"group {full_name(name)!r} has no members")
            self._check_made(shard, request.role, bounded=request.bounded)
            group = self._make(shard, name, request.role)
        try:
            waiter = group.join(request, partial(self._new_id, request.instance_id or request.client_id))
        except WeirError:
            if group.unused:
                self._drop(shard, name)
            raise
        return await waiter

    def _new_id(self, prefix: str) -> str:
        return f"{prefix[:_MAX_PREFIX]}-{self._runtime.rng.getrandbits(128):032x}"

    async def sync(self, name: str, request: SyncRequest) -> Synced:
        """Waits until the leader has brought everyone's share."""
        return await (await self._with_member(name)).sync(request)

    async def heartbeat(self, name: str, member_id: str, generation: int, instance_id: str | None = None) -> None:
        (await self._with_member(name)).heartbeat(member_id, generation, instance_id)

    async def leave(self, name: str, members: Sequence[tuple[str, str | None]]) -> list[WeirError | None]:
        """Members as (id, instance id); answers what went wrong with each. Once answered, no coordinator waits for
        those that left."""
        try:
            results, durable = (await self._with_member(name)).leave(members)
        except UnknownMemberError as unknown:
            return [unknown] * len(members)
        failure = None if durable is None else await durable
        if failure is not None:
            raise failure
        return results

    async def check_member(
        self,
        name: str,
        member_id: str,
        generation: int,
        instance_id: str | None = None,
        *,
        role: str = "",
        bounded: bool = False,
    ) -> Callable[[], None]:
        """Raises unless positions may be committed in a transaction in this member's name; a transaction that
        names none may do so always. Answers with the same check, for the moment at which it is done."""
        _check_name(name)
        shard = await self._shard(name)

        def check() -> None:
            self._check_commit(shard, name, member_id, generation, instance_id, transactional=True)
            if not self._exists(shard, name):
                self._check_made(shard, role, bounded=bounded)

        check()
        return check

    # --- positions --------------------------------------------------------------------------------------

    async def commit(
        self,
        name: str,
        positions: Mapping[TopicName, CommittedOffset],
        *,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        role: str = "",
        bounded: bool = False,
    ) -> dict[TopicName, WeirError | None]:
        """By a member, or by somebody else while there are no members: a role, which may make so many groups only
        if it is `bounded`."""
        _check_name(name)
        shard = await self._shard(name)

        def check() -> None:
            self._check_commit(shard, name, member_id, generation, instance_id)
            if not self._exists(shard, name):
                self._check_made(shard, role, bounded=bounded)

        check()
        results = await self.offsets.commit(name, positions, check=check)
        if shard in self._groups and None in results.values():
            noted = self._note(shard, name, role)
            failure = None if noted is None else await noted
            if failure is not None:
                raise failure
        return results

    def _check_commit(
        self,
        shard: CoordinatorShard,
        name: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        *,
        transactional: bool = False,
    ) -> None:
        groups = self._groups.get(shard)
        if groups is None:
            raise NotOwnerError(f"group {full_name(name)!r} has moved to another broker")
        group = groups.get(name)
        if group is not None:
            group.check_commit(member_id, generation, instance_id, transactional=transactional)
        elif generation >= 0:
            if self.offsets.knows(shard, name):
                raise UnknownMemberError(f"group {full_name(name)!r} has no members")
            what = f"there is no group {full_name(name)[:80]!r}"
            raise IllegalGenerationError(what) if transactional else UnknownGroupError(what)

    async def fetch(
        self, name: str, parts: Sequence[TopicName] | None = None, *, stable: bool = False
    ) -> dict[TopicName, CommittedOffset | WeirError]:
        """Where the group is, whoever asks (`GroupOffsets.fetch`)."""
        _check_name(name)
        return await self.offsets.fetch(name, parts, stable=stable)

    async def delete_offsets(self, name: str, parts: Sequence[TopicName]) -> dict[TopicName, WeirError | None]:
        """Forget positions. Whether members read there is for the caller to know: it is opaque here."""
        await self.describe(name)
        return await self.offsets.delete(name, parts)

    # --- administration ---------------------------------------------------------------------------------

    async def all(self) -> list[GroupInfo]:
        """Every group that this broker coordinates."""
        found: dict[str, GroupInfo] = {}
        for shard in await self._shards.used():
            for name in self.offsets.groups(shard):
                found[name] = GroupInfo(name, GroupState.EMPTY)
            for group in self._of(shard).values():
                found[group.name] = group.info()
        return [found[name] for name in sorted(found)]

    async def describe(self, name: str) -> GroupInfo:
        """UnknownGroupError if there is none."""
        _check_name(name)
        group = self._of(shard := await self._shard(name)).get(name)
        if group is not None:
            return group.info()
        if self.offsets.knows(shard, name):
            return GroupInfo(name, GroupState.EMPTY)
        raise UnknownGroupError(f"there is no group {full_name(name)[:80]!r}")

    async def delete(self, name: str) -> None:
        """With all of its positions. GroupNotEmptyError while it has members, or others use its positions."""
        if (await self.describe(name)).state is not GroupState.EMPTY:
            raise GroupNotEmptyError(f"group {full_name(name)!r} has members")
        shard = await self._shard(name)
        group = self._of(shard).get(name)
        if group is not None and group.state is not GroupState.EMPTY:
            raise GroupNotEmptyError(f"group {full_name(name)!r} has members")
        self._forget(shard, name)
        results = await self.offsets.delete(name)
        await shard.state.flush()
        for failed in results.values():
            if failed is not None:
                raise GroupNotEmptyError(f"group {full_name(name)!r} is not deleted: {failed}") from failed

    async def claims(self, name: str) -> GroupClaims | None:
        """Whose the group is; None if there is none."""
        _check_name(name)
        shard = await self._shard(name)
        if not self._exists(shard, name):
            return None
        found = dict.fromkeys(await self.offsets.parts(name))
        group = self._of(shard).get(name)
        if group is None:
            return GroupClaims("", frozenset(), tuple(found))
        found.update(dict.fromkeys(group.members.topics))
        return GroupClaims(group.role, group.members.roles, tuple(found))

    async def exists(self, name: str) -> bool:
        _check_name(name)
        return self._exists(await self._shard(name), name)

    async def roles(self, name: str, members: Iterable[str]) -> Mapping[str, str]:
        """Whose each of these members is; those that there are not are missing."""
        group = self._of(await self._shard(name)).get(name)
        found = [] if group is None else [(member, group.members.get(member)) for member in members]
        return {member: known.role for member, known in found if known is not None}

    async def owner(self, name: str) -> Owner:
        """The broker to ask for the group."""
        return await self._shards.owner(name)

    # --- finding and keeping groups -----------------------------------------------------------------------

    async def _with_member(self, name: str) -> Group:
        _check_name(name)
        group = self._groups[await self._shard(name)].get(name)
        if group is None:
            raise UnknownMemberError(f"group {full_name(name)!r} has no members")
        return group

    async def _shard(self, name: str) -> CoordinatorShard:
        """The shard of this name, with its groups loaded."""
        shard = await self._shards.of(name)
        self._of(shard)
        return shard

    def _of(self, shard: CoordinatorShard) -> dict[str, Group]:
        groups = self._groups.get(shard)
        if groups is None:
            for other in [other for other in self._groups if not other.alive]:
                self._lost(other)
            records, departures = read_groups(shard), read_departures(shard)
            groups = self._groups[shard] = {}
            for name, record in records.items():
                groups[name] = self._new_group(shard, name)
                groups[name].departures = departures.pop(name, [])
                restore(groups[name], record, groups[name].departures)
                self._show(groups[name])
            for name, members in departures.items():  # of groups that are forgotten
                delete_departures(shard, name, members)
            self._made[shard] = Counter(group.role for group in groups.values())
            shard.on_death(lambda: self._lost(shard))
        return groups

    def _exists(self, shard: CoordinatorShard, name: str) -> bool:
        return name in self._of(shard) or self.offsets.knows(shard, name)

    def _lost(self, shard: CoordinatorShard) -> None:
        self._made.pop(shard, None)
        for group in self._groups.pop(shard, {}).values():
            group.end(NotOwnerError(f"group {group.title!r} has moved to another broker"))

    def _check_made(self, shard: CoordinatorShard, role: str, *, bounded: bool) -> None:
        """TooManyError if the role has made as many groups as it may."""
        most = self.settings.max_groups_per_role
        if bounded and self._made[shard][role] >= most:
            raise TooManyError(
                f"{role!r} has made {most} groups", hint="delete some, or raise groups.max_per_role"
            )

    def _make(self, shard: CoordinatorShard, name: str, role: str = "") -> Group:
        if len(self._groups[shard]) >= self.settings.max_groups:
            raise TooManyError(f"there are {self.settings.max_groups} groups already")
        group = self._groups[shard][name] = self._new_group(shard, name, role)
        self._made[shard][role] += 1
        return group

    def _drop(self, shard: CoordinatorShard, name: str) -> Group | None:
        group = self._groups[shard].pop(name, None)
        if group is not None:
            self._made[shard][group.role] -= 1
        return group

    def _new_group(self, shard: CoordinatorShard, name: str, role: str = "") -> Group:
        store: Callable[[Group], asyncio.Future[WeirError | None]] = partial(self._store_in, shard)
        store_departures: Callable[[Group, Sequence[str]], asyncio.Future[WeirError | None]] = partial(
            self._records.store_departures, shard
        )
        return Group(
            name,
            self._clock,
            self.settings,
            store=store,
            store_departures=store_departures,
            changed=self._show,
            changed_some=self._show_some,
            role=role,
        )

    def _show(self, group: Group) -> None:
        """Tell stats who has what."""
        self._members.set(group.name, _shares(group, group.members))

    def _show_some(self, group: Group, gone: Sequence[str], came: Sequence[Member]) -> None:
        """The same, when only these have changed."""
        self._members.change(group.name, gone, _shares(group, came))

    def _store_in(self, shard: CoordinatorShard, group: Group) -> "asyncio.Future[WeirError | None]":
        return self._records.store(shard, group)

    def _forget(self, shard: CoordinatorShard, name: str) -> None:
        group = self._drop(shard, name)
        if group is not None:
            delete_departures(shard, name, group.departures)
            group.end(UnknownGroupError(f"group {full_name(name)!r} is deleted"))
        delete_record(shard, name)
        self._kept_until_ms.pop(name, None)

    # --- expiry -----------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(self.settings.sweep_s)
            for shard in list(self._groups):
                self._adopt(shard)
                for group in list(self._groups.get(shard, {}).values()):
                    try:
                        await self._expire(shard, group)
                    except WeirError as failed:
                        log.warning("group %s could not be looked after this time: %s", group.title, failed)

    def _adopt(self, shard: CoordinatorShard) -> None:
        """Positions that came without a group, by a transaction, are a group's from now on, and can expire."""
        if shard in self._groups:
            for name in self.offsets.groups(shard):
                self._note(shard, name)

    def _note(
        self, shard: CoordinatorShard, name: str, role: str = ""
    ) -> "asyncio.Future[WeirError | None] | None":
        """There is a group of this name, without members so far."""
        groups = self._groups[shard]
        if name in groups or len(groups) >= self.settings.max_groups:
            return None
        return self._store_in(shard, self._make(shard, name, role))

    async def _expire(self, shard: CoordinatorShard, group: Group) -> None:
        """Forget an empty group that nobody used for long, and at once one that has no positions to keep."""
        now_ms, retention_ms = self._clock.wall_ms(), int(self.settings.retention_s * 1000)
        if group.state is GroupState.STABLE:
            await self._expire_unread(group, now_ms - retention_ms)
        if not group.is_idle() or now_ms < self._kept_until_ms.get(group.name, 0):
            return
        since_ms = group.empty_since_ms
        if await self.offsets.parts(group.name) and now_ms - since_ms < retention_ms:
            return
        left_ms = await self.offsets.expire(group.name, now_ms - retention_ms)
        if left_ms is not None:
            self._kept_until_ms[group.name] = left_ms + retention_ms
        elif group.is_idle() and shard in self._groups:
            log.info("group %s is forgotten: it was empty since %s", group.title, since_ms)
            self._forget(shard, group.name)

    async def _expire_unread(self, group: Group, before_ms: int) -> None:
        """What members were given they read; only if there is more are they asked."""

        def topics_read() -> Collection[TopicName] | None:
            return self._topics_read(group.info()) if group.state is GroupState.STABLE else None

        given = {part.base: None for member in group.members for part in member.parts}
        if any(part.base not in given for part in await self.offsets.parts(group.name)):
            await self.offsets.expire_unread(group.name, before_ms, topics_read)


def _shares(group: Group, members: Iterable[Member]) -> list[Share]:
    return [(member.stats(group.generation), member.parts) for member in members if member.parts]


def _check_name(name: str) -> None:
    if not name or len(name.encode(errors="replace")) > _MAX_NAME_BYTES:
        raise InvalidGroupError(f"a group's name has 1 to {_MAX_NAME_BYTES} bytes, {name[:80]!r} does not")
