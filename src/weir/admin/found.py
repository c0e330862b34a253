"""Messages found by their key, of every protocol, by the topic's index of keys."""

import base64
import binascii
from typing import Annotated

from msgspec import Meta, Struct

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_ONE_TOPIC, topic_of
from weir.admin.routing import BadRequestError, Call, Query, Route
from weir.admin.waiting import WaitingMessage, shown_messages
from weir.model.registry import Action

_MOST = 1_000
_BASE = "/admin/weir/v1/found/persistent/{tenant}/{namespace}/{topic}"


class FoundAnswer(Struct):
    """The latest first."""

    messages: list[WaitingMessage]


class Found:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                _BASE,
                "The latest messages of a key, by the topic's index of keys (policy `keyIndex`).",
                self._get,
                answer=FoundAnswer,
                query=(
                    Query("key", str, "the key, or one of the keys", ""),
                    Query("base64", bool, "whether `key` is base64", False),
                    Query("limit", Annotated[int, Meta(ge=1, le=_MOST)], "how many", 10),
                ),
                refusals=ABOUT_ONE_TOPIC,
                tag="messages",
            )
        ]

    async def _get(self, call: Call) -> FoundAnswer:
        name = topic_of(call.path)
        self._context.authoriser.check(call.role, Action.CONSUME, name)
        text = call.query["key"]
        try:
            key = base64.b64decode(text, validate=True) if call.query["base64"] else text.encode()
        except (binascii.Error, UnicodeEncodeError) as bad:
            raise BadRequestError(f"the key cannot be read: {bad}") from bad
        stored = await self._context.stored_one(name)
        return FoundAnswer(shown_messages(stored, await stored.find(key, call.query["limit"])))
