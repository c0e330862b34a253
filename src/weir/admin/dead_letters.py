"""Routes for retry policies of subscriptions, and for dead letters: list and redrive."""

from base64 import b64encode
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct

from weir.admin.browse import partition_of
from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_ONE_TOPIC, ABOUT_TOPIC, CONFLICT, subscription_of, topic_of, topic_path
from weir.admin.policies import RetryBody, retry_body, retry_of_body
from weir.broker.api.topics import DeadLetterBox, LetterFilter, StoredLetter, StoredTopic, SubscriptionControl
from weir.model.messages import Message
from weir.model.registry import Action
from weir.model.retry import RetryPolicy, retry_of, with_retry
from weir.model.topics import Domain, TopicName
from weir.rest.routes import BadRequestError, Call, Natural, Query, RefusedError, Route

_RETRY = f"{topic_path(Domain.PERSISTENT)}/subscription/{{subscription}}/retry"
_LETTERS = "/admin/weir/v1/dead-letters/persistent/{tenant}/{namespace}/{topic}"
_TAG = "dead letters"
_MAX_PAGE = 1_000
#: Maximum bytes of a value in an answer.
_SHOWN_BYTES = 64 * 1024
_MISSING = (404,)


class SubscriptionRetry(Struct, rename="camel"):
    """The effective retry policy of a subscription; `own`: its own part. `active`: whether the broker retries."""

    active: bool
    schedule: str | None
    max_deliveries: int | None
    #: Full name of its dead letter topic.
    dead_letter_topic: str
    own: RetryBody


class DeadLetterBody(Struct, rename="camel"):
    """`key` and `value` are base64; `size`: of the whole value, of which a large one shows its beginning."""

    offset: int
    key: str | None
    value: str | None
    size: int
    properties: dict[str, str]
    publish_ms: int
    reason: str | None
    deliveries: int | None
    topic: str | None
    origin_offset: int | None
    subscription: str | None
    stored_ms: int | None
    died_ms: int | None


class DeadLetterList(Struct, rename="camel"):
    """`next`: `from` of the next call; None at the end. `waiting`: number of letters, including those that the
    filter excludes. `end`: `before` of later calls, to leave out letters that arrived after this call."""

    letters: list[DeadLetterBody]
    next: int | None
    looked_at: int
    waiting: int
    end: int


class RedrivenBody(Struct, rename="camel"):
    """`kept`: letters not moved, because their original topic is deleted or a consumer has them."""

    moved: int
    kept: int
    next: int | None
    looked_at: int
    waiting: int
    end: int


_FILTER = (
    Query("topic", str, "letters from this topic or partition"),
    Query("subscription", str, "letters from this subscription"),
    Query("key", str, "letters with this key"),
    Query("property", str, "letters with this property: name=value"),
    Query("reason", str, "letters with this reason: rejected, delivery_limit, expired, maxlen"),
    Query("since", Natural, "letters that died at this time or later (milliseconds since 1970)"),
    Query("until", Natural, "letters that died before this time (milliseconds since 1970)"),
    Query("filter", str, "an SQL92 condition over key and properties"),
)
_PAGE = (
    Query("from", Natural, "`next` of the previous call", 0),
    Query("before", Natural, "`end` of the first call, to leave out letters that arrived later"),
    Query("limit", Annotated[int, Meta(ge=1, le=_MAX_PAGE)], "maximum number of letters", 100),
)


class Retries:
    """Retry policies and dead letters. A call on a partitioned topic's subscription applies to each partition."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        about = {**ABOUT_TOPIC, **CONFLICT}
        return [
            Route(
                "GET",
                _RETRY,
                "The effective retry policy and dead letter topic of a subscription.",
                self._get,
                answer=SubscriptionRetry,
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "PUT",
                _RETRY,
                "Set the retry policy; for missing fields the topic's policies apply.",
                self._put,
                body=RetryBody,
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "DELETE",
                _RETRY,
                "Remove the retry policy; the topic's policies apply.",
                self._remove,
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "GET",
                _LETTERS,
                "Dead letters in a topic, the oldest first.",
                self._list,
                answer=DeadLetterList,
                query=(*_FILTER, *_PAGE),
                refusals=ABOUT_ONE_TOPIC,
                tag=_TAG,
            ),
            Route(
                "POST",
                f"{_LETTERS}/redrive",
                "Redrive dead letters to their original topics, exactly once.",
                self._redrive,
                answer=RedrivenBody,
                query=(
                    *_FILTER,
                    *_PAGE,
                    Query("to", str, "target topic; default: the original topic of each letter"),
                ),
                refusals={**ABOUT_ONE_TOPIC, **CONFLICT},
                tag=_TAG,
            ),
        ]

    # --- policies -----------------------------------------------------------------------------------------------

    def _topic(self, call: Call) -> TopicName:
        name = topic_of(call.path)
        self._context.authoriser.check(call.role, Action.CONSUME, name)
        return name

    async def _here(self, call: Call) -> tuple[StoredTopic, SubscriptionControl]:
        topic = await self._context.stored_one(self._topic(call))
        return topic, topic.subscription(subscription_of(call.path))

    async def _get(self, call: Call) -> SubscriptionRetry:
        parts = await self._context.on_partitions(call, self._topic(call), fine=_MISSING)
        if parts is not None:
            first: SubscriptionRetry = next(iter(parts.values()))
            return first
        topic, subscription = await self._here(call)
        holds = subscription.retry
        return SubscriptionRetry(
            holds.active,
            None if holds.schedule is None else str(holds.schedule),
            holds.max_deliveries,
            str(holds.dead_letters_of(topic.topic.name, subscription.name)),
            retry_body(retry_of(subscription.properties) or RetryPolicy()),
        )

    async def _put(self, call: Call) -> None:
        policy = retry_of_body(call.body)
        self._context.check_dead_letters(call.role, self._topic(call), policy)
        await self._set(call, policy)

    async def _remove(self, call: Call) -> None:
        await self._set(call, None)

    async def _set(self, call: Call, policy: RetryPolicy | None) -> None:
        if await self._context.on_partitions(call, self._topic(call), fine=_MISSING) is None:
            _, subscription = await self._here(call)
            subscription.set_properties(with_retry(subscription.properties, policy))
            await subscription.persisted()

    # --- letters ------------------------------------------------------------------------------------------------

    async def _box(self, call: Call) -> DeadLetterBox:
        return (await self._context.stored_one(self._topic(call))).dead_letters

    async def _list(self, call: Call) -> DeadLetterList:
        box = await self._box(call)
        page = await box.page(_wanted(call), start=call.query["from"], most=call.query["limit"])
        letters = [_shown(one) for one in page.letters]
        return DeadLetterList(letters, page.next, page.looked_at, box.waiting, page.end)

    async def _redrive(self, call: Call) -> RedrivenBody:
        box = await self._box(call)

        def check(target: TopicName) -> None:
            self._context.authoriser.check(call.role, Action.PRODUCE, target)

        done = await box.redrive(
            _wanted(call),
            start=call.query["from"],
            most=call.query["limit"],
            check=check,
            to=await self._chooser(call),
        )
        return RedrivenBody(done.moved, done.kept, done.next, done.looked_at, box.waiting, done.end)

    async def _chooser(self, call: Call) -> Callable[[Message], TopicName] | None:
        """Chooses the partition of the call's target topic by each letter's key; None without a target topic."""
        if call.query["to"] is None:
            return None
        name = TopicName.parse(call.query["to"])
        if name.base == topic_of(call.path).base:
            raise RefusedError(412, "dead letters cannot be redriven into their own topic")
        self._context.authoriser.check(call.role, Action.PRODUCE, name)
        parts = await self._context.partitions(name)
        if parts is None:
            return lambda letter: name
        return lambda letter: parts[partition_of(letter.key, len(parts), letter.publish_ms)]


def _wanted(call: Call) -> LetterFilter:
    query = call.query
    said, properties = query["property"], {}
    if said is not None:
        name, equals, value = said.partition("=")
        if not equals:
            raise BadRequestError(f"{said[:80]!r} is not name=value")
        properties[name] = value
    key, topic = query["key"], query["topic"]
    return LetterFilter(
        None if topic is None else TopicName.parse(topic),
        query["subscription"],
        None if key is None else key.encode(),
        properties,
        query["reason"],
        query["since"],
        query["until"],
        query["filter"] or "",
        query["before"],
    )


def _shown(letter: StoredLetter) -> DeadLetterBody:
    message, death = letter.message, letter.death
    value = None if message.value is None else bytes(message.value)
    return DeadLetterBody(
        letter.offset,
        None if message.key is None else b64encode(message.key).decode(),
        None if value is None else b64encode(value[:_SHOWN_BYTES]).decode(),
        len(value or b""),
        {name: (text or b"").decode(errors="replace") for name, text in message.headers},
        message.publish_ms,
        None if death is None else death.reason,
        None if death is None else death.deliveries,
        None if death is None else str(death.topic),
        None if death is None else death.offset,
        None if death is None else death.subscription,
        None if death is None else death.stored_ms,
        None if death is None else death.died_ms,
    )
