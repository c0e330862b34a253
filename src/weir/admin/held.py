"""Held messages, which Pulsar has no API for: list, count, cancel, release before their moment."""

from contextlib import aclosing

from weir.admin.bodies import HeldCountBody, HeldMessage, HeldPage
from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_ONE_TOPIC, topic_of
from weir.admin.routing import BadRequestError, Call, Query, RefusedError, Route
from weir.broker.topic import BrokerTopic
from weir.model.batch import HeldId
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.stream.holding import FOREVER_MS, HeldItem, HoldingArea

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
                    Query("limit", int, f"how many, {_MAX_PAGE} at the most", 100),
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
        if not 0 < limit <= _MAX_PAGE:
            raise BadRequestError(f"limit is 1 to {_MAX_PAGE}")
        area = await self._area(self._allowed(call, Action.CONSUME))
        found: list[HeldItem] = []
        async with aclosing(area.items(None if after is None else _place(after))) as items:
            async for item in items:
                found.append(item)
                if len(found) == limit:
                    break
        more = _mark(found[-1]) if len(found) == limit else None
        return HeldPage([_shown(item) for item in found], more)

    async def _count(self, call: Call) -> HeldCountBody:
        count = await (await self._area(self._allowed(call, Action.CONSUME))).count()
        return HeldCountBody(count.batches, count.messages)

    async def _cancel(self, call: Call) -> None:
        area = await self._area(self._allowed(call, Action.PRODUCE))
        await area.cancel(_id(call.path["held"]))

    async def _release(self, call: Call) -> None:
        area = await self._area(self._allowed(call, Action.PRODUCE))
        await area.release(_id(call.path["held"]))

    def _allowed(self, call: Call, action: Action) -> TopicName:
        name = topic_of(call.path)
        self._context.authoriser.check(call.role, action, name)
        return name

    async def _area(self, name: TopicName) -> HoldingArea:
        topic: BrokerTopic = await self._context.stored_one(name)
        area = topic.publisher.holding
        if not isinstance(area, HoldingArea):
            raise RefusedError(412, "this broker holds no messages")
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
