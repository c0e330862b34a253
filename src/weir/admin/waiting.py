"""What a subscription has not acknowledged, message by message, of every protocol: looked at, and left there."""

import base64
from typing import Annotated

from msgspec import Meta, Struct

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_ONE_TOPIC, subscription_of, topic_of
from weir.admin.positions import id_at
from weir.admin.routing import Call, Query, Route
from weir.broker.api import StoredTopic
from weir.model.batch import Batch
from weir.model.message import Message
from weir.model.registry import Action
from weir.wire.formats import messages_of

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
