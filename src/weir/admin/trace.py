"""Routes for message traces, by message ID, offset, key, or trace ID."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_NAMESPACE, ABOUT_ONE_TOPIC, namespace_of, topic_of
from weir.broker.api.topics import StoredTopic
from weir.model.batch import Batch
from weir.model.errors import TopicNotFoundError, WireError
from weir.model.messages import TRACE_TOPIC, Message, TraceEvent, TraceKind
from weir.model.registry import Action
from weir.model.topics import NamespaceName, TopicName
from weir.rest.routes import BadRequestError, Call, Query, Route
from weir.wire.formats.table import messages_of
from weir.wire.pulsar.ids import parse_id
from weir.wire.trace import decode_event, key_word, offset_word, position_word, trace_word

#: Maximum events read for one search word, and maximum messages in one answer.
_MOST_EVENTS = 1_000
_MOST = 100
_OF_TOPIC = "/admin/weir/v1/trace/persistent/{tenant}/{namespace}/{topic}"
_OF_TRACE = "/admin/weir/v1/traces/{tenant}/{namespace}/{trace}"
_COMES_IN = (TraceKind.STORED.value, TraceKind.RELEASED.value, TraceKind.HELD.value)


class EventBody(Struct, omit_defaults=True, rename="camel"):
    """One thing that happened; `at` and the others in milliseconds."""

    event: str
    at: int
    broker: str
    took_ms: float = 0.0
    producer: str = ""
    subscription: str = ""
    consumer: str = ""
    address: str = ""
    times: int = 0
    reason: str = ""
    held: str = ""
    due_ms: int = 0


class TracedMessage(Struct, rename="camel"):
    """`offset` -1, `id` "": it is not in the log yet. Events in the order in which they happened."""

    topic: str
    offset: int
    id: str
    key: str
    trace_id: str
    events: list[EventBody]


class TraceAnswer(Struct):
    """The latest message first."""

    messages: list[TracedMessage]


class Traces:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        limit = Query("limit", Annotated[int, Meta(ge=1, le=_MOST)], "how many messages", 10)
        return [
            Route(
                "GET",
                _OF_TOPIC,
                "What became of messages of a topic: of one by its id or offset, or of the latest of a key.",
                self._of_topic,
                answer=TraceAnswer,
                query=(
                    Query("id", str, "a message id, as in 12:0", ""),
                    Query("offset", int, "an offset", -1),
                    Query("key", str, "a key", ""),
                    limit,
                ),
                refusals=ABOUT_ONE_TOPIC,
                tag="messages",
            ),
            Route(
                "GET",
                _OF_TRACE,
                "What became of the messages of a trace (W3C), in all topics of a namespace.",
                self._of_trace,
                answer=TraceAnswer,
                query=(limit,),
                refusals=ABOUT_NAMESPACE,
                tag="messages",
            ),
        ]

    async def _of_topic(self, call: Call) -> TraceAnswer:
        name = topic_of(call.path)
        self._context.authoriser.check(call.role, Action.CONSUME, name)
        log = await self._log(name.namespace)
        topic, limit = str(name), call.query["limit"]
        if call.query["key"]:
            key = call.query["key"]
            events = await _events(log, key_word(topic, key))
            places = [(event, index) for event in events for index, one in enumerate(event.keys) if one == key]
            return await self._answer(log, places, limit)
        if call.query["id"]:
            try:
                at = parse_id(call.query["id"])
            except WireError as bad:
                raise BadRequestError(str(bad)) from bad
            entry = at.entry + max(0, at.batch_index)
            events = await _events(log, position_word(topic, at.ledger, entry))
            places = [
                (event, entry - event.entry)
                for event in events
                if event.ledger == at.ledger and 0 <= entry - event.entry < event.end - event.first
            ]
            return await self._answer(log, places, limit)
        offset = call.query["offset"]
        if offset < 0:
            raise BadRequestError("say which message is meant", hint="give id, offset or key")
        events = [one for one in await _events(log, offset_word(topic, offset)) if one.event in _COMES_IN]
        places = [(event, offset - event.first) for event in events if event.first <= offset < event.end]
        return await self._answer(log, places, limit)

    async def _of_trace(self, call: Call) -> TraceAnswer:
        namespace, wanted = namespace_of(call.path), call.path["trace"].lower()
        self._context.authoriser.check(call.role, Action.CONSUME, TopicName(namespace, TRACE_TOPIC))
        log = await self._log(namespace)
        events = await _events(log, trace_word(wanted))
        places = [(event, index) for event in events for index, one in enumerate(event.traces) if one == wanted]
        return await self._answer(log, places, call.query["limit"])

    async def _log(self, namespace: NamespaceName) -> StoredTopic:
        try:
            return await self._context.stored_one(TopicName(namespace, TRACE_TOPIC))
        except TopicNotFoundError as missing:
            raise TopicNotFoundError(
                f"nothing of {namespace} is traced", hint="weir trace rate TOPIC 1% turns it on"
            ) from missing

    async def _answer(self, log: StoredTopic, places: Sequence[tuple[TraceEvent, int]], limit: int) -> TraceAnswer:
        """Each message with all that happened to it; one that was held and released is one."""
        released = {event.held: None for event, _ in places if event.event == TraceKind.RELEASED.value}
        found: list[TracedMessage] = []
        for event, index in places:
            if event.event == TraceKind.HELD.value and event.held in released:
                continue
            if len(found) >= limit:
                break
            found.append(await _traced(log, event, index))
        return TraceAnswer(found)


async def _traced(log: StoredTopic, event: TraceEvent, index: int) -> TracedMessage:
    key = event.keys[index] if index < len(event.keys) else ""
    trace = event.traces[index] if index < len(event.traces) else ""
    if event.first < 0:
        return TracedMessage(event.topic, -1, "", key, trace, list(_bodies(event)))
    offset = event.first + index
    events = [one for one in await _events(log, offset_word(event.topic, offset)) if one.first <= offset < one.end]
    if event.held and key:
        held = await _events(log, key_word(event.topic, key))
        events += [one for one in held if one.event == TraceKind.HELD.value and one.held == event.held]
    at = f"{event.ledger}:{event.entry + index}" if event.ledger >= 0 else ""
    events.reverse()
    ordered = sorted(events, key=lambda one: (one.ms, one.event not in _COMES_IN))
    return TracedMessage(event.topic, offset, at, key, trace, [body for one in ordered for body in _bodies(one)])


def _bodies(event: TraceEvent) -> Iterable[EventBody]:
    """The event as answer bodies, with a "produced" event before the time that storing took."""
    if event.producer:
        sent = event.ms - round(event.took_ms)
        yield EventBody("produced", sent, event.broker, producer=event.producer, address=event.address)
    yield EventBody(
        event.event,
        event.ms,
        event.broker,
        event.took_ms,
        "",
        event.subscription,
        event.consumer,
        "" if event.producer else event.address,
        event.times,
        event.reason,
        event.held,
        event.due_ms,
    )


async def _events(log: StoredTopic, word: str) -> list[TraceEvent]:
    """The latest first."""
    return list(_decoded(await log.find(word.encode(), _MOST_EVENTS)))


def _decoded(places: Iterable[tuple[Batch, int]]) -> Iterable[TraceEvent]:
    opened: dict[int, list[Message]] = {}
    for batch, index in places:
        messages = opened.get(id(batch))
        if messages is None:
            messages = opened[id(batch)] = messages_of(batch)
        if len(messages) != batch.count:  # no trace event, and not decodable
            continue
        try:
            yield decode_event(messages[index].value or b"")
        except WireError:
            continue  # no trace event
