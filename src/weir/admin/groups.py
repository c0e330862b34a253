"""Kafka's consumer groups, which Pulsar has no API for: who is in them, how far they are, and moving them."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, field

from weir.admin.context import AdminContext
from weir.admin.routing import Call, Natural, RefusedError, Route
from weir.broker.api import CommittedOffset, GroupInfo, Groups, GroupState
from weir.model.errors import GroupNotEmptyError, NotOwnerError, UnknownGroupError, WeirError
from weir.model.registry import Action
from weir.model.topics import TopicName

_ALL = "/admin/weir/v1/groups"
_ONE = f"{_ALL}/{{group}}"
_TAG = "groups"
_NONE_HERE = {501: "no groups are kept here"}
_ABOUT = {307: "another broker has the group", 404: "no such group", 412: "not a valid name", **_NONE_HERE}

_Topic = Annotated[str, Meta(max_length=4_000)]


class MemberBody(Struct, rename="camel"):
    member_id: str
    client_id: str
    client_host: str
    #: Of a static member; "" of others.
    instance_id: str
    #: The partitions that it has, in full.
    partitions: list[str]


class PositionBody(Struct, rename="camel"):
    """`offset`: the next that the group wants there. `error`: why it cannot be told."""

    topic: str
    offset: int = -1
    metadata: str = ""
    error: str = ""


class GroupBody(Struct, rename="camel"):
    name: str
    #: empty, joining, syncing, stable or dead.
    state: str
    protocol: str
    generation: int
    members: list[MemberBody]
    #: Of one group that is asked for; of many there would be too much to tell.
    positions: list[PositionBody] = field(default_factory=list)


class MoveBody(Struct):
    """Where the group shall be, by partitions in full."""

    positions: Annotated[dict[_Topic, Natural], Meta(max_length=10_000)]


class GroupRoutes:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                _ALL,
                "The groups that this broker coordinates, of those that the caller may use.",
                self._list,
                answer=list[GroupBody],
                refusals=_NONE_HERE,
                tag=_TAG,
            ),
            Route(
                "GET",
                _ONE,
                "One group: its members, and how far it is on each partition.",
                self._get,
                answer=GroupBody,
                refusals=_ABOUT,
                tag=_TAG,
            ),
            Route(
                "POST",
                f"{_ONE}/positions",
                "Put a group without members elsewhere, or make one; answers what went wrong, by partition.",
                self._move,
                body=MoveBody,
                answer=dict[str, str],
                refusals={**_ABOUT, 409: "the group has members"},
                tag=_TAG,
            ),
        ]

    async def _list(self, call: Call) -> list[GroupBody]:
        return [_shown(info) for info in await self._groups(call).all()]

    async def _get(self, call: Call) -> GroupBody:
        groups, name = await self._here(call)
        try:
            body = _shown(await groups.describe(name))
        except UnknownGroupError:
            raise UnknownGroupError(f"no group {name[:80]!r} that the caller may use") from None
        found = await groups.fetch(name)
        body.positions = [_position(topic, at) for topic, at in sorted(found.items(), key=_by_name)]
        return body

    async def _move(self, call: Call) -> Mapping[str, str]:
        groups, name = await self._here(call)
        wanted = {TopicName.parse(topic): CommittedOffset(offset) for topic, offset in call.body.positions.items()}
        for topic in wanted:
            self._context.authoriser.check(call.role, Action.CONSUME, topic)
        if await self._has_members(groups, name):
            raise GroupNotEmptyError(
                f"group {name[:80]!r} has members, which would go on from where they are", hint="stop them first"
            )
        results = await groups.commit(name, wanted)
        return {str(topic): str(failed) for topic, failed in results.items() if failed is not None}

    async def _has_members(self, groups: Groups, name: str) -> bool:
        """One that is not there has none, and is made: so that it begins where it shall."""
        try:
            return (await groups.describe(name)).state is not GroupState.EMPTY
        except UnknownGroupError:
            return False

    def _groups(self, call: Call) -> Groups:
        found = self._context.groups
        if found is None:
            raise RefusedError(501, "this broker keeps no groups")
        return found.of(call.role)

    async def _here(self, call: Call) -> tuple[Groups, str]:
        """The caller is sent on if another broker coordinates the group."""
        groups, name = self._groups(call), call.path["group"]
        owner = await groups.owner(name)
        if not owner.here:
            raise NotOwnerError(f"group {name[:80]!r} is with {owner.broker_id}", listeners=owner.listeners)
        return groups, name


def _by_name(item: tuple[TopicName, object]) -> tuple[str, int]:
    topic = item[0]
    return str(topic.base), -1 if topic.partition is None else topic.partition


def _shown(info: GroupInfo) -> GroupBody:
    members = [
        MemberBody(
            one.member_id, one.client_id, one.client_host, one.instance_id or "", [str(part) for part in one.parts]
        )
        for one in info.members
    ]
    return GroupBody(info.name, info.state.value, info.protocol, info.generation, members)


def _position(topic: TopicName, at: CommittedOffset | WeirError) -> PositionBody:
    if isinstance(at, WeirError):
        return PositionBody(str(topic), error=str(at))
    return PositionBody(str(topic), at.offset, at.metadata)
