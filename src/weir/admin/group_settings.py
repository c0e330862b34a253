"""Settings of consumer groups, and the types of messages that topics take: RocketMQ's words for both."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_NAMESPACE, ABOUT_TOPIC, namespace_of, topic_of
from weir.admin.routing import Call, Route
from weir.model.consumer_groups import (
    GroupSettings,
    check_group,
    groups_in,
    settings_in,
    types_in,
    with_settings,
    with_types,
)
from weir.model.retry import parse_schedule

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
