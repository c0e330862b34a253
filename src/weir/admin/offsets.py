"""Offsets of a topic, which Pulsar has no API for: its first and last, those of moments, and moving there."""

from msgspec import Struct

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_ONE_TOPIC, subscription_of, topic_of
from weir.admin.positions import id_at
from weir.admin.routing import Call, Natural, Query, Route
from weir.broker.api import StoredTopic
from weir.model.registry import Action

_BASE = "/admin/weir/v1/offsets/persistent/{tenant}/{namespace}/{topic}"
_TAG = "offsets"


class OffsetsAnswer(Struct, rename="camel"):
    """`offset`: what was asked for, or the end; `message_id`: the same as Pulsar's clients say it."""

    start: int
    end: int
    offset: int
    message_id: str


class OffsetBody(Struct):
    offset: Natural


class Offsets:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                _BASE,
                "The first and the next offset, and the one of a moment; with the message id of an offset.",
                self._get,
                answer=OffsetsAnswer,
                query=(
                    Query("offset", int, "its message id is told; what lies outside is brought inside"),
                    Query("time", Natural, "the first offset that was stored then or later (milliseconds)"),
                ),
                refusals=ABOUT_ONE_TOPIC,
                tag=_TAG,
            ),
            Route(
                "POST",
                f"{_BASE}/{{subscription}}",
                "Move a subscription: everything before the offset is acknowledged, nothing from it on.",
                self._move,
                body=OffsetBody,
                answer=OffsetsAnswer,
                refusals=ABOUT_ONE_TOPIC,
                tag=_TAG,
            ),
        ]

    async def _get(self, call: Call) -> OffsetsAnswer:
        stored = await self._stored(call)
        wanted, moment_ms = call.query["offset"], call.query["time"]
        if moment_ms is not None:
            wanted = await stored.topic.offset_at(moment_ms)
        return _answer(stored, stored.topic.end_offset if wanted is None else wanted)

    async def _move(self, call: Call) -> OffsetsAnswer:
        stored = await self._stored(call)
        subscription = stored.subscription(subscription_of(call.path))
        await subscription.seek(call.body.offset)
        return _answer(stored, call.body.offset)

    async def _stored(self, call: Call) -> StoredTopic:
        name = topic_of(call.path)
        self._context.authoriser.check(call.role, Action.CONSUME, name)
        return await self._context.stored_one(name)


def _answer(stored: StoredTopic, wanted: int) -> OffsetsAnswer:
    topic = stored.topic
    offset = max(topic.start_offset, min(wanted, topic.end_offset))
    at = id_at(topic, offset)
    return OffsetsAnswer(topic.start_offset, topic.end_offset, offset, f"{at.ledgerId}:{at.entryId}")
