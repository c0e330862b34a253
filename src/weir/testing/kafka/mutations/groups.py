"""Promises to members of groups broken on purpose (see `kafka_mutations`)."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import patch

from weir.broker.api.groups import Joined, JoinRequest
from weir.broker.coordination.partition_ops import LocalParts
from weir.broker.groups.classic_group import Group
from weir.broker.groups.group_coordinator import GroupCoordinator
from weir.broker.groups.members import Member, Roster
from weir.model.errors import WeirError
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset
from weir.testing.kafka.checkers import groups
from weir.testing.kafka.mutations.entered import CRASHES, MEMBERS, SLOW_STATE, mutation
from weir.testing.mutation import often
from weir.testing.storage.plan import Fault

_STATIC = {**MEMBERS, "static": True, "session_ms": 3_000}


@mutation("generation-not-checked", groups.commits_are_of_their_generation, **MEMBERS)
def _generation_not_checked() -> Iterator[None]:
    """Anybody may commit positions of a group at any time."""
    with patch.object(Group, "check_commit", lambda self, *asked, **more: None):
        yield


@mutation("position-before-flush", groups.positions_are_kept, storage=CRASHES, streams=SLOW_STATE, **MEMBERS)
def _position_before_flush() -> Iterator[None]:
    """A commit of positions is answered before it is durable."""

    async def not_now(states: Mapping[TopicName, Any]) -> dict[TopicName, WeirError]:
        return {}

    with patch("weir.broker.coordination.partition_ops._flushed", not_now):
        yield


@mutation("group-not-persisted", groups.one_owner_at_a_time, storage=CRASHES, **MEMBERS)
def _group_not_persisted() -> Iterator[None]:
    """What a group has agreed on is forgotten with the broker."""

    def forget(self: GroupCoordinator, shard: Any, group: Group) -> Any:
        stored: asyncio.Future[WeirError | None] = asyncio.get_running_loop().create_future()
        stored.set_result(None)
        return stored

    with patch.object(GroupCoordinator, "_store_in", forget):
        yield


@mutation("new-group-at-the-end", groups.groups_read_everything, groups.positions_are_kept, **MEMBERS)
def _new_group_at_the_end() -> Iterator[None]:
    """A group that has no position is told that it is at the end."""
    fetch = LocalParts.fetch

    async def latest(self: LocalParts, group: str, parts: Any) -> Any:
        found = await fetch(self, group, parts)
        topics, _ = await self._load(part for part in parts if part not in found)
        return found | {part: CommittedOffset(topic.end_offset) for part, topic in topics.items()}

    with patch.object(LocalParts, "fetch", latest):
        yield


# --- static and cooperative members -----------------------------------------------------------------------------


@mutation("static-member-is-new", groups.restarts_divide_nothing_anew, storage=often(), **_STATIC)
def _static_member_is_new() -> Iterator[None]:
    """The work is divided anew whenever a static member comes back."""
    keep_share = Group._keep_share

    def divide_anew(self: Group, member: Member, leader_before: str) -> "asyncio.Future[Joined]":
        keep_share(self, member, leader_before).add_done_callback(lambda done: done.exception())
        waiter = member.await_join(self._replies, WeirError("asked again"))
        self._rebalance("a mistake")
        return waiter

    with patch.object(Group, "_keep_share", divide_anew):
        yield


@mutation("static-share-forgotten", groups.static_members_keep_their_share, **_STATIC)
def _static_share_forgotten() -> Iterator[None]:
    """A static member that comes back has nothing until the work is divided anew."""
    rename = Roster.rename

    def empty_handed(self: Roster, member: Member, member_id: str) -> None:
        rename(self, member, member_id)
        member.assignment = b""

    with patch.object(Roster, "rename", empty_handed):
        yield


@mutation(
    "former-self-not-fenced", groups.former_selves_are_fenced, storage=often(Fault.LOST_CONNECTIONS), **_STATIC
)
def _former_self_not_fenced() -> Iterator[None]:
    """A static member is known by its name, whichever id it says that it has."""
    find = Roster.find

    def by_name(self: Roster, member_id: str, instance_id: str | None) -> Member:
        return self.static(instance_id) or find(self, member_id, instance_id)

    with patch.object(Roster, "find", by_name):
        yield


@mutation("stale-subscription", groups.what_is_owned_stays, **{**MEMBERS, "cooperative": True, "in_parts": 3})
def _stale_subscription() -> Iterator[None]:
    """What a member says when it joins again is not heard: its leader divides by what it said at first."""
    update = Member.update

    def deaf(self: Member, request: JoinRequest) -> None:
        before = self.protocols
        update(self, request)
        self.protocols = before

    with patch.object(Member, "update", deaf):
        yield
