"""Subscriptions of stored topics: create, delete, skip, expire, reset, and their properties.

What a subscription has not acknowledged, message by message, of every protocol: looked at, and left there.
"""

import base64
from collections.abc import Awaitable, Callable
from typing import Annotated

from msgspec import Meta, Struct

from weir.admin.context import AdminContext
from weir.admin.names import (
    ABOUT_ONE_TOPIC,
    ABOUT_TOPIC,
    CONFLICT,
    Properties,
    ResetCursorData,
    bounded,
    id_at,
    offset_at,
    subscription_of,
    topic_of,
    topic_path,
)
from weir.broker.api.consumers import StartAt
from weir.broker.api.topics import StoredTopic, SubscriptionControl
from weir.model.batch import Batch
from weir.model.errors import SubscriptionExistsError, SubscriptionNotFoundError
from weir.model.messages import Message
from weir.model.registry import Action
from weir.model.retry import retry_of
from weir.model.topics import Domain, TopicName
from weir.rest.responses import status_of
from weir.rest.routes import Call, Query, RefusedError, Route
from weir.wire.formats.table import messages_of

_TOPIC = topic_path(Domain.PERSISTENT)
_ONE = f"{_TOPIC}/subscription/{{subscription}}"
_TAG = "subscriptions"
#: A partition that has no such subscription, or has it already: fine while another is not like that.
_MISSING = (404,)
_THERE = (409,)


class Redelivered(Struct):
    """`again`: false if it had not been delivered yet, and comes anyway."""

    again: bool


class Subscriptions:
    """A call on a partitioned topic is one on each of its partitions."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [*self._life(), *self._moves()]

    def _life(self) -> list[Route]:
        about = {**ABOUT_TOPIC, **CONFLICT}
        return [
            Route(
                "GET",
                f"{_TOPIC}/subscriptions",
                "List subscriptions.",
                self._list,
                answer=list[str],
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "PUT",
                _ONE,
                "Create a subscription at a message, or at the end.",
                self._create,
                body=ResetCursorData,
                body_optional=True,
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "DELETE",
                _ONE,
                "Delete a subscription.",
                self._delete,
                query=(Query("force", bool, "also while it has consumers, which are closed", False),),
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "GET",
                f"{_ONE}/properties",
                "Its properties.",
                self._get_properties,
                answer=Properties,
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "PUT",
                f"{_ONE}/properties",
                "Set its properties.",
                self._put_properties,
                body=Properties,
                body_optional=True,
                refusals=about,
                tag=_TAG,
            ),
        ]

    def _moves(self) -> list[Route]:
        def move(path: str, summary: str, action: Callable[[Call], Awaitable[None]]) -> Route:
            return Route("POST", path, summary, action, refusals=ABOUT_ONE_TOPIC, tag=_TAG)

        return [
            move(f"{_ONE}/skip/{{count}}", "Acknowledge the oldest messages.", self._skip),
            move(f"{_ONE}/skip_all", "Acknowledge every message.", self._skip_all),
            move(f"{_ONE}/expireMessages/{{seconds}}", "Acknowledge what is older.", self._expire),
            move(
                f"{_TOPIC}/all_subscription/expireMessages/{{seconds}}",
                "Acknowledge what is older, in every subscription.",
                self._expire_all,
            ),
            Route(
                "POST",
                f"{_ONE}/expireMessages",
                "Acknowledge everything up to a message.",
                self._expire_to,
                body=ResetCursorData,
                refusals=ABOUT_TOPIC,
                tag=_TAG,
            ),
            move(f"{_ONE}/resetcursor/{{timestamp}}", "Go back, or on, to a moment.", self._reset_to_moment),
            Route(
                "POST",
                f"{_ONE}/redeliver/{{offset}}",
                "Deliver one message again, and no other, whether it is acknowledged or not.",
                self._redeliver,
                answer=Redelivered,
                refusals={**ABOUT_ONE_TOPIC, **CONFLICT},
                tag=_TAG,
            ),
            Route(
                "POST",
                f"{_ONE}/resetcursor",
                "Go back, or on, to a message.",
                self._reset_to_message,
                body=ResetCursorData,
                refusals=ABOUT_TOPIC,
                tag=_TAG,
            ),
        ]

    def _topic(self, call: Call) -> TopicName:
        name = topic_of(call.path)
        self._context.authoriser.check(call.role, Action.CONSUME, name)
        return name

    async def _here(self, call: Call) -> tuple[StoredTopic, SubscriptionControl]:
        """The subscription of a topic, or of a partition, that this broker has."""
        topic = await self._context.stored_one(self._topic(call))
        return topic, topic.subscription(subscription_of(call.path))

    async def _on_partitions(self, call: Call) -> bool:
        """Whether the topic is partitioned; then the call was done on each partition that has the subscription.
        404 if none has."""
        name, wanted = self._topic(call), subscription_of(call.path)
        parts = await self._context.partitions(name)
        if parts is None:
            return False
        try:
            await self._context.on_topics(call, parts, fine=_MISSING)
        except (RefusedError, SubscriptionNotFoundError) as refused:
            if status_of(refused) not in _MISSING:
                raise
            raise SubscriptionNotFoundError(f"{name} has no subscription {wanted[:80]!r}") from refused
        return True

    # --- life and death -----------------------------------------------------------------------------------------

    async def _list(self, call: Call) -> list[str]:
        name = self._topic(call)
        parts = await self._context.on_partitions(call, name)
        if parts is not None:
            return list(dict.fromkeys(found for names in parts.values() for found in names))
        topic = await self._context.stored_one(name)
        return list(dict.fromkeys((*topic.subscriptions, *topic.groups)))

    async def _create(self, call: Call) -> None:
        name, wanted, body = self._topic(call), subscription_of(call.path), call.body or ResetCursorData()
        properties = bounded(body.properties)
        self._context.check_dead_letters(call.role, name, retry_of(properties))
        await self._context.registry.ensure_topic(name)  # as a consumer would make it
        if await self._context.on_partitions(call, name, fine=_THERE) is not None:
            return
        topic = await self._context.stored_one(name)
        start = StartAt(offset=await offset_at(topic.topic, body))
        if wanted in topic.subscriptions:
            raise SubscriptionExistsError(f"{name} has a subscription {wanted[:80]!r}")
        await topic.create_subscription(wanted, start, properties=properties)

    async def _delete(self, call: Call) -> None:
        if not await self._on_partitions(call):
            topic, subscription = await self._here(call)
            await topic.delete_subscription(subscription.name, force=call.query["force"])

    async def _get_properties(self, call: Call) -> Properties:
        parts = await self._context.on_partitions(call, self._topic(call), fine=_MISSING)
        if parts is not None:
            first: Properties = next(iter(parts.values()))
            return first
        return dict((await self._here(call))[1].properties)

    async def _put_properties(self, call: Call) -> None:
        properties = bounded(call.body)
        self._context.check_dead_letters(call.role, topic_of(call.path), retry_of(properties))
        if not await self._on_partitions(call):
            _, subscription = await self._here(call)
            subscription.set_properties(properties)
            await subscription.persisted()

    # --- moving -------------------------------------------------------------------------------------------------

    async def _skip(self, call: Call) -> None:
        _, subscription = await self._here(call)
        subscription.skip(call.path["count"])
        await subscription.persisted()

    async def _skip_all(self, call: Call) -> None:
        if not await self._on_partitions(call):
            _, subscription = await self._here(call)
            subscription.skip_all()
            await subscription.persisted()

    async def _expire(self, call: Call) -> None:
        if not await self._on_partitions(call):
            await self._expire_one(*await self._here(call), call.path["seconds"])

    async def _expire_all(self, call: Call) -> None:
        name = self._topic(call)
        if await self._context.on_partitions(call, name) is None:
            topic = await self._context.stored_one(name)
            for subscription in list(topic.subscriptions.values()):
                await self._expire_one(topic, subscription, call.path["seconds"])

    async def _expire_one(self, topic: StoredTopic, subscription: SubscriptionControl, seconds: int) -> None:
        before_ms = max(0, self._context.clock.wall_ms() - seconds * 1000)
        subscription.expire_before(await topic.topic.offset_at(before_ms))
        await subscription.persisted()

    async def _expire_to(self, call: Call) -> None:
        if not await self._on_partitions(call):
            topic, subscription = await self._here(call)
            subscription.expire_before(await offset_at(topic.topic, call.body, after=True))
            await subscription.persisted()

    async def _redeliver(self, call: Call) -> Redelivered:
        _, subscription = await self._here(call)
        return Redelivered(again=await subscription.deliver_again(call.path["offset"]))

    async def _reset_to_moment(self, call: Call) -> None:
        if not await self._on_partitions(call):
            topic, subscription = await self._here(call)
            await subscription.seek(await topic.topic.offset_at(call.path["timestamp"]))

    async def _reset_to_message(self, call: Call) -> None:
        if not await self._on_partitions(call):
            topic, subscription = await self._here(call)
            await subscription.seek(await offset_at(topic.topic, call.body))


_MOST = 1_000
_MAX_BYTES = 16 * 1024 * 1024
_BASE = "/admin/weir/v1/waiting/persistent/{tenant}/{namespace}/{topic}/{subscription}"


class WaitingMessage(Struct, rename="camel"):
    """Bytes are base64; a value is None of a message that has none, as one that removes its key."""

    id: str
    offset: int
    key: str | None
    value: str | None
    headers: list[tuple[str, str | None]]
    publish_ms: int
    event_ms: int | None = None


class WaitingAnswer(Struct):
    messages: list[WaitingMessage]
    #: How many are not acknowledged, all together.
    backlog: int


class Waiting:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                _BASE,
                "The first messages that are not acknowledged, in the order in which they would be delivered.",
                self._get,
                answer=WaitingAnswer,
                query=(Query("limit", Annotated[int, Meta(ge=1, le=_MOST)], "how many", 1),),
                refusals=ABOUT_ONE_TOPIC,
                tag="messages",
            )
        ]

    async def _get(self, call: Call) -> WaitingAnswer:
        name, wanted = topic_of(call.path), subscription_of(call.path)
        self._context.authoriser.check(call.role, Action.CONSUME, name)
        stored = await self._context.stored_one(name)
        if wanted in stored.groups and wanted not in stored.subscriptions:
            # A group that has committed nothing here has acknowledged nothing.
            places = await _from_start(stored, call.query["limit"])
            return WaitingAnswer(
                shown_messages(stored, places), stored.topic.end_offset - stored.topic.start_offset
            )
        subscription = stored.subscription(wanted)
        places = await subscription.waiting(call.query["limit"])
        return WaitingAnswer(shown_messages(stored, places), subscription.backlog)


async def _from_start(stored: StoredTopic, count: int) -> list[tuple[Batch, int]]:
    reader, found = stored.topic.reader(), list[tuple[Batch, int]]()
    offset = reader.start_offset
    while len(found) < count and (batches := await reader.read(offset, 1 << 20)):
        for batch in batches:
            bits = reader.visible(batch)
            found += [(batch, index) for index in range(batch.count) if bits is None or bits >> index & 1]
        offset = batches[-1].end_offset
    return found[:count]


def shown_messages(stored: StoredTopic, places: list[tuple[Batch, int]]) -> list[WaitingMessage]:
    """Opened batch by batch, and no more than fit into an answer."""
    found: list[WaitingMessage] = []
    opened: dict[int, list[Message]] = {}
    size = 0
    for batch, index in places:
        messages = opened.get(batch.base_offset)
        if messages is None:
            messages = opened[batch.base_offset] = messages_of(batch)
        # One that cannot be opened stands for all of its batch.
        message = messages[index if index < len(messages) else 0]
        size += len(message.value or b"")
        if found and size > _MAX_BYTES:
            break
        offset = batch.base_offset + index
        at = id_at(stored.topic, batch.base_offset)
        place = f"{at.ledgerId}:{at.entryId}" + (f":{index}" if batch.count > 1 else "")
        found.append(
            WaitingMessage(
                place,
                offset,
                _text(message.key),
                _text(message.value),
                [(name, _text(value)) for name, value in message.headers],
                message.publish_ms,
                message.event_ms,
            )
        )
    return found


def _text(value: bytes | bytearray | memoryview | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
