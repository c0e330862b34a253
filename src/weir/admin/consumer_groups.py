"""Settings of consumer groups, and the types of messages that topics take: RocketMQ's words for both.

Kafka's consumer groups, which Pulsar has no API for: who is in them, how far they are, and moving them.
"""

from collections.abc import Mapping
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_NAMESPACE, ABOUT_TOPIC, namespace_of, topic_of
from weir.broker.api.groups import GroupInfo, Groups, GroupState
from weir.model.errors import GroupNotEmptyError, NotOwnerError, UnknownGroupError, WeirError
from weir.model.registry import Action
from weir.model.retry import parse_schedule
from weir.model.subscriptions import (
    GroupSettings,
    check_group,
    groups_in,
    settings_in,
    types_in,
    with_settings,
    with_types,
)
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset
from weir.rest.routes import Call, Natural, RefusedError, Route

_ALL = "/admin/weir/v1/groups"
_GROUPS_ONE = f"{_ALL}/{{group}}"
_GROUPS_TAG = "groups"
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
                tag=_GROUPS_TAG,
            ),
            Route(
                "GET",
                _GROUPS_ONE,
                "One group: its members, and how far it is on each partition.",
                self._get,
                answer=GroupBody,
                refusals=_ABOUT,
                tag=_GROUPS_TAG,
            ),
            Route(
                "POST",
                f"{_GROUPS_ONE}/positions",
                "Put a group without members elsewhere, or make one; answers what went wrong, by partition.",
                self._move,
                body=MoveBody,
                answer=dict[str, str],
                refusals={**_ABOUT, 409: "the group has members"},
                tag=_GROUPS_TAG,
            ),
        ]

    async def _list(self, call: Call) -> list[GroupBody]:
        return [_groups_shown(info) for info in await self._groups(call).all()]

    async def _get(self, call: Call) -> GroupBody:
        groups, name = await self._here(call)
        try:
            body = _groups_shown(await groups.describe(name))
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


def _groups_shown(info: GroupInfo) -> GroupBody:
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


_GROUPS = "/admin/weir/v1/group-settings/{tenant}/{namespace}"
_ONE = f"{_GROUPS}/{{group}}"
_TYPES = "/admin/weir/v1/message-types/persistent/{tenant}/{namespace}/{topic}"
_TAG = "consumer groups"


class GroupSettingsBody(Struct, rename="camel"):
    """`schedule`: what clients wait between attempts, as in `10s 30s 1m` or `1s..10m x2`. `liteExclusive`: one
    client at a time has a lite topic."""

    name: str
    fifo: bool
    max_attempts: int
    schedule: str
    lite_exclusive: bool


class GroupSettingsChange(Struct, rename="camel"):
    """What is not said stays as it is."""

    fifo: bool | UnsetType = UNSET
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    schedule: Annotated[str, Meta(max_length=1000)] | UnsetType = UNSET
    lite_exclusive: bool | UnsetType = UNSET


class MessageTypesBody(Struct):
    types: Annotated[list[Annotated[str, Meta(max_length=40)]], Meta(max_length=20)]


class GroupSettingsRoutes:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                _GROUPS,
                "Consumer groups of which something is said.",
                self._list,
                answer=list[GroupSettingsBody],
                refusals=ABOUT_NAMESPACE,
                tag=_TAG,
            ),
            Route(
                "GET",
                _ONE,
                "What holds for a consumer group: said of it, or usual.",
                self._get,
                answer=GroupSettingsBody,
                refusals=ABOUT_NAMESPACE,
                tag=_TAG,
            ),
            Route(
                "PUT",
                _ONE,
                "Say whether a consumer group is FIFO, its attempts and its waits.",
                self._put,
                body=GroupSettingsChange,
                answer=GroupSettingsBody,
                refusals=ABOUT_NAMESPACE,
                tag=_TAG,
            ),
            Route("DELETE", _ONE, "Back to the usual.", self._delete, refusals=ABOUT_NAMESPACE, tag=_TAG),
            Route(
                "GET",
                _TYPES,
                "The types of messages that a topic takes.",
                self._types,
                answer=MessageTypesBody,
                refusals=ABOUT_TOPIC,
                tag=_TAG,
            ),
            Route(
                "PUT",
                _TYPES,
                "Set the types of messages that a topic takes.",
                self._set_types,
                body=MessageTypesBody,
                answer=MessageTypesBody,
                refusals=ABOUT_TOPIC,
                tag=_TAG,
            ),
        ]

    async def _list(self, call: Call) -> list[GroupSettingsBody]:
        namespace = namespace_of(call.path)
        self._context.authoriser.check_lookup(call.role, namespace)
        found = groups_in(self._context.registry.namespaces.get(namespace).properties)
        return [_shown(name, said) for name, said in found.items()]

    async def _get(self, call: Call) -> GroupSettingsBody:
        namespace, group = namespace_of(call.path), check_group(call.path["group"])
        self._context.authoriser.check_lookup(call.role, namespace)
        properties = self._context.registry.namespaces.get(namespace).properties
        return _shown(group, settings_in(properties, group) or GroupSettings())

    async def _put(self, call: Call) -> GroupSettingsBody:
        namespace, group = namespace_of(call.path), check_group(call.path["group"])
        self._context.authoriser.check_admin(call.role, namespace)
        change: GroupSettingsChange = call.body
        self._context.registry.namespaces.get(namespace)
        schedule = UNSET if change.schedule is UNSET else parse_schedule(change.schedule)

        def changed(before: GroupSettings) -> GroupSettings:
            return GroupSettings(
                before.fifo if change.fifo is UNSET else change.fifo,
                before.max_attempts if change.max_attempts is UNSET else change.max_attempts,
                before.schedule if schedule is UNSET else schedule,
                before.lite_exclusive if change.lite_exclusive is UNSET else change.lite_exclusive,
            )

        found = await self._context.registry.change_properties(
            namespace,
            lambda said: with_settings(said, group, changed(settings_in(said, group) or GroupSettings())),
        )
        return _shown(group, settings_in(found, group) or GroupSettings())

    async def _delete(self, call: Call) -> None:
        namespace, group = namespace_of(call.path), check_group(call.path["group"])
        self._context.authoriser.check_admin(call.role, namespace)
        self._context.registry.namespaces.get(namespace)
        await self._context.registry.change_properties(namespace, lambda said: with_settings(said, group, None))

    async def _types(self, call: Call) -> MessageTypesBody:
        topic = topic_of(call.path).base
        self._context.authoriser.check_lookup(call.role, topic)
        return MessageTypesBody(list(types_in((await self._context.registry.topics.get(topic)).properties)))

    async def _set_types(self, call: Call) -> MessageTypesBody:
        topic = topic_of(call.path).base
        self._context.authoriser.check_admin(call.role, topic)
        body: MessageTypesBody = call.body
        await self._context.registry.topics.get(topic)
        found = await self._context.registry.change_properties(topic, lambda said: with_types(said, body.types))
        return MessageTypesBody(list(types_in(found)))


def _shown(name: str, said: GroupSettings) -> GroupSettingsBody:
    return GroupSettingsBody(name, said.fifo, said.max_attempts, str(said.schedule), said.lite_exclusive)
