"""Held messages, which Pulsar has no API for: list, count, cancel, release before their moment."""

from contextlib import aclosing
from typing import Annotated

from msgspec import Meta

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_ONE_TOPIC, HeldCountBody, HeldMessage, HeldPage, topic_of
from weir.broker.api.topics import HeldMessages
from weir.model.batch import HeldId
from weir.model.errors import NotHeldError
from weir.model.messages import FOREVER_MS, HeldCount, HeldItem
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.rest.routes import BadRequestError, Call, Query, Route

_BASE = "/admin/weir/v1/held/persistent/{tenant}/{namespace}/{topic}"
_TAG = "held messages"
_MAX_PAGE = 1_000


class Held:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        one, about = f"{_BASE}/{{held}}", ABOUT_ONE_TOPIC
        return [
            Route(
                "GET",
                _BASE,
                "What waits for its moment, by that moment.",
                self._list,
                answer=HeldPage,
                query=(
                    Query("limit", Annotated[int, Meta(ge=1, le=_MAX_PAGE)], "how many", 100),
                    Query("after", str, "the `next` of the page before"),
                ),
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "GET",
                f"{_BASE}/count",
                "How much waits.",
                self._count,
                answer=HeldCountBody,
                refusals=about,
                tag=_TAG,
            ),
            Route("DELETE", one, "Cancel: it will never be seen.", self._cancel, refusals=about, tag=_TAG),
            Route("POST", f"{one}/release", "Let it be seen now.", self._release, refusals=about, tag=_TAG),
        ]

    async def _list(self, call: Call) -> HeldPage:
        limit, after = call.query["limit"], call.query["after"]
        start = None if after is None else _place(after)
        area = await self._area(self._allowed(call, Action.CONSUME))
        found: list[HeldItem] = []
        if area is not None:
            async with aclosing(area.items(start)) as items:
                async for item in items:
                    found.append(item)
                    if len(found) == limit:
                        break
        more = _mark(found[-1]) if len(found) == limit else None
        return HeldPage([_shown(item) for item in found], more)

    async def _count(self, call: Call) -> HeldCountBody:
        area = await self._area(self._allowed(call, Action.CONSUME))
        count = HeldCount(0, 0) if area is None else await area.count()
        return HeldCountBody(count.batches, count.messages)

    async def _cancel(self, call: Call) -> None:
        held = _id(call.path["held"])
        await (await self._filled(call)).cancel(held)

    async def _release(self, call: Call) -> None:
        held = _id(call.path["held"])
        await (await self._filled(call)).release(held)

    def _allowed(self, call: Call, action: Action) -> TopicName:
        name = topic_of(call.path)
        self._context.authoriser.check(call.role, action, name)
        return name

    async def _area(self, name: TopicName) -> HeldMessages | None:
        """None if nothing is held."""
        return (await self._context.stored_one(name)).held

    async def _filled(self, call: Call) -> HeldMessages:
        name = self._allowed(call, Action.PRODUCE)
        area = await self._area(name)
        if area is None:
            raise NotHeldError(f"{name} holds no messages")
        return area


def _shown(item: HeldItem) -> HeldMessage:
    due = item.due_ms if item.due_ms < FOREVER_MS else None
    return HeldMessage(f"{item.id.ledger}:{item.id.entry}", due, item.count, item.size)


def _id(text: str) -> HeldId:
    ledger, entry = _numbers(text, 2)
    return HeldId(ledger, entry)


def _mark(item: HeldItem) -> str:
    return f"{item.due_ms}:{item.id.ledger}:{item.id.entry}"


def _place(text: str) -> HeldItem:
    due_ms, ledger, entry = _numbers(text, 3)
    return HeldItem(HeldId(ledger, entry), due_ms, 0, 0)


def _numbers(text: str, count: int) -> list[int]:
    parts = text.split(":")
    if len(parts) != count or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise BadRequestError(f"{text[:80]!r} names no held message")
    return [int(part) for part in parts]
