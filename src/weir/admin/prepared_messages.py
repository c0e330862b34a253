"""Half messages, for those whose protocol has none: prepare, list, look at, commit, roll back."""

import base64
import binascii
from typing import Annotated

from msgspec import Meta, Struct, field

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_ONE_TOPIC, CONFLICT, topic_of
from weir.broker.api.producers import Outgoing, ProducerRequest
from weir.broker.api.topics import HalfMessages
from weir.model.batch import Batch, BatchFormat, HeldId
from weir.model.messages import MAX_RECOVERY_MS, Decision, HalfMessage, Message, Preparation
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.rest.routes import BadRequestError, Call, Query, RefusedError, Route
from weir.wire.formats.messages import encode_messages
from weir.wire.formats.table import messages_of

_BASE = "/admin/weir/v1/half/persistent/{tenant}/{namespace}/{topic}"
_TAG = "half messages"
_MOST = 1_000


class HalfPrepare(Struct, rename="camel"):
    """`payload`: the message as text, or base64 with `base64`. `group`: producers that may be asked about it.
    `recoveryMs`: nobody is asked before; null: as the broker is set."""

    group: str
    payload: str = ""
    base64: bool = False
    key: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    recovery_ms: Annotated[int, Meta(ge=0, le=MAX_RECOVERY_MS)] | None = None


class HalfBody(Struct, rename="camel"):
    """One that is not decided. Moments are milliseconds since 1970. `checks`: how often it was asked about, or
    nobody was there to be asked."""

    id: str
    group: str
    prepared: int
    next_check: int
    checks: int
    messages: int
    bytes: int


class HalfPage(Struct):
    """`next`: what to give as `after` for the following ones; null at the end."""

    half: list[HalfBody]
    next: str | None = None


class HalfCountsBody(Struct, rename="camel"):
    """How many wait, and what became of others since the topic was loaded. `givenUp`: of those rolled back, the
    ones that nothing was heard of. `checked`, `unasked`: times that a producer was asked, and that nobody was
    there."""

    waiting: int
    prepared: int
    committed: int
    rolled_back: int
    given_up: int
    checked: int
    unasked: int


class HalfContent(Struct):
    """Bytes are base64."""

    key: str | None
    value: str | None
    headers: list[tuple[str, str | None]]


class HalfShown(Struct):
    half: HalfBody
    content: list[HalfContent]


class HalfPrepared(Struct):
    id: str


class HalfDecision(Struct):
    """`again`: it was decided so before. `offset`: where a committed one is in the topic; -1: not known
    any more."""

    decision: str
    offset: int
    again: bool


class Half:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        one, about = f"{_BASE}/{{half}}", ABOUT_ONE_TOPIC
        return [
            Route(
                "GET",
                _BASE,
                "Half messages that are neither committed nor rolled back, the oldest first.",
                self._list,
                answer=HalfPage,
                query=(
                    Query("limit", Annotated[int, Meta(ge=1, le=_MOST)], "how many", 100),
                    Query("after", str, "the `next` of the page before"),
                    Query("group", str, "of this producer group only"),
                ),
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "GET",
                f"{_BASE}/count",
                "How many wait, and what became of others.",
                self._count,
                answer=HalfCountsBody,
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "POST",
                _BASE,
                "Prepare a message: it is stored, and seen by nobody before it is committed.",
                self._prepare,
                body=HalfPrepare,
                answer=HalfPrepared,
                refusals={**about, **CONFLICT},
                tag=_TAG,
            ),
            Route(
                "GET",
                one,
                "One of them, with what it says.",
                self._show,
                answer=HalfShown,
                refusals=about,
                tag=_TAG,
            ),
            *(
                Route(
                    "POST",
                    f"{one}/{decision.value}",
                    summary,
                    action,
                    answer=HalfDecision,
                    refusals={**about, 409: "it was decided otherwise before"},
                    tag=_TAG,
                )
                for decision, summary, action in (
                    (Decision.COMMIT, "Let it be seen. Fine to ask again.", self._commit),
                    (Decision.ROLL_BACK, "It will never be seen. Fine to ask again.", self._roll_back),
                )
            ),
        ]

    async def _list(self, call: Call) -> HalfPage:
        limit, after = call.query["limit"], call.query["after"]
        start = None if after is None else _numbers(after, 3)
        found = await (await self._half(self._allowed(call))).waiting(group=call.query["group"])
        if start is not None:
            found = [half for half in found if _place(half) > start]
        more = ":".join(map(str, _place(found[limit - 1]))) if len(found) > limit else None
        return HalfPage([_shown(half) for half in found[:limit]], more)

    async def _count(self, call: Call) -> HalfCountsBody:
        counts = (await self._half(self._allowed(call))).counts
        return HalfCountsBody(
            counts.waiting,
            counts.prepared,
            counts.committed,
            counts.rolled_back,
            counts.given_up,
            counts.checked,
            counts.unasked,
        )

    async def _show(self, call: Call) -> HalfShown:
        name, half = self._allowed(call), _id(call.path["half"])
        message, batch = await (await self._half(name)).get(half)
        return HalfShown(_shown(message), _content(batch))

    async def _prepare(self, call: Call) -> HalfPrepared:
        name = self._allowed(call)
        body: HalfPrepare = call.body
        message = Message(
            None if body.key is None else body.key.encode(),
            _payload(body),
            [(header, text.encode()) for header, text in body.properties.items()],
            publish_ms=self._context.clock.wall_ms(),
        )
        if await self._context.broker.partitions(name, role=call.role):
            raise RefusedError(405, f"{name} is partitioned", hint="name one of its partitions")
        topic = await self._context.broker.topic(name, role=call.role)
        producer = await topic.produce(ProducerRequest(call.role))
        try:
            await producer.wait_capacity()
            receipt = await producer.publish(
                Outgoing(
                    encode_messages([message]),
                    1,
                    BatchFormat.MESSAGES,
                    half=Preparation(body.group, body.recovery_ms),
                )
            )
        finally:
            await producer.close()
        ledger, entry = receipt.position
        return HalfPrepared(f"{ledger}:{entry}")

    async def _commit(self, call: Call) -> HalfDecision:
        return await self._decide(call, Decision.COMMIT)

    async def _roll_back(self, call: Call) -> HalfDecision:
        return await self._decide(call, Decision.ROLL_BACK)

    async def _decide(self, call: Call, decision: Decision) -> HalfDecision:
        name, half = self._allowed(call), _id(call.path["half"])
        decided = await (await self._half(name)).decide(half, decision, role=call.role)
        return HalfDecision(decided.decision.value, decided.offset, decided.again)

    def _allowed(self, call: Call) -> TopicName:
        """All of it is for producers: what is not committed is not for consumers to see."""
        name = topic_of(call.path)
        self._context.authoriser.check(call.role, Action.PRODUCE, name)
        return name

    async def _half(self, name: TopicName) -> HalfMessages:
        return (await self._context.stored_one(name)).half


def _payload(body: HalfPrepare) -> bytes:
    try:
        return base64.b64decode(body.payload, validate=True) if body.base64 else body.payload.encode()
    except (binascii.Error, ValueError) as bad:
        raise BadRequestError(f"the payload is no base64: {bad}") from bad


def _shown(half: HalfMessage) -> HalfBody:
    return HalfBody(
        f"{half.id.ledger}:{half.id.entry}",
        half.group,
        half.prepared_ms,
        half.next_check_ms,
        half.checks,
        half.count,
        half.size,
    )


def _content(batch: Batch) -> list[HalfContent]:
    return [
        HalfContent(_text(one.key), _text(one.value), [(name, _text(value)) for name, value in one.headers])
        for one in messages_of(batch)
    ]


def _text(value: bytes | bytearray | memoryview | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _place(half: HalfMessage) -> list[int]:
    return [half.prepared_ms, half.id.ledger, half.id.entry]


def _id(text: str) -> HeldId:
    ledger, entry = _numbers(text, 2)
    return HeldId(ledger, entry)


def _numbers(text: str, count: int) -> list[int]:
    parts = text.split(":")
    if len(parts) != count or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise BadRequestError(f"{text[:80]!r} names no half message")
    return [int(part) for part in parts]
