"""SendMessage: one message or several of one topic, and RecallMessage."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from weir.broker.api.producers import Outgoing, Producer, Receipt
from weir.gateway.rocketmq.call import Call, calls
from weir.gateway.rocketmq.errors import Refused, ok, status_of
from weir.gateway.rocketmq.forwarding import at_owner, queue_name
from weir.gateway.rocketmq.handlers.transactions import may_be_asked, preparation_of
from weir.gateway.rocketmq.message_validation import accepted_types, body_of, check_message, name_of
from weir.gateway.rocketmq.names import lite_topic_of, topic_of
from weir.gateway.rocketmq.publisher import PublishedTopic
from weir.model.batch import BatchFormat, HeldId
from weir.model.errors import NotHeldError, NotOwnerError, WeirError, WireError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.wire.formats.messages import encode_message, join_messages
from weir.wire.rocketmq import rocketmq_pb2 as api
from weir.wire.rocketmq.handles import PlaceHandle, recall_of
from weir.wire.rocketmq.message import message_of
from weir.wire.rocketmq.proto import ms_of

_T = api.MessageType


@calls("SendMessage", api.SendMessageRequest, api.SendMessageResponse, stores=True)
def send_message(call: Call, request: Any) -> Any:
    messages = request.messages
    if not messages:
        raise Refused(api.Code.MESSAGE_CORRUPTED, "no message to send")
    topic = parent = topic_of(messages[0].topic)
    lite = messages[0].system_properties.lite_topic
    if lite:
        topic = lite_topic_of(topic, lite)
    for message in messages:
        check_message(message, call.session.limits)
        if len(messages) > 1 and message.topic != messages[0].topic:
            raise Refused(api.Code.MESSAGE_CORRUPTED, "different message topic")
        if message.system_properties.lite_topic != lite:
            raise Refused(api.Code.MESSAGE_CORRUPTED, "different lite topic")
    known = call.session.publishing.topic_now(call.role, topic)
    if known is None:
        return _open_and_send(call, topic, parent, request)
    return _send(call, known, parent, request)


async def _open_and_send(call: Call, topic: TopicName, parent: TopicName, request: Any) -> Any:
    if topic != parent:
        await call.session.services.broker.partitions(parent, role=call.role)
    async with _patiently(call, topic):
        opened = await call.session.publishing.topic(call.role, topic)
    apart = _send(call, opened, parent, request)
    return None if apart is None else await apart


@asynccontextmanager
async def _patiently(call: Call, topic: TopicName) -> AsyncIterator[None]:
    """Bound the wait for a topic by the client's deadline: after a failed write, a topic accepts no messages until
    its recovery has finished."""
    try:
        async with asyncio.timeout(call.patience_s):
            yield
    except TimeoutError:
        raise Refused(
            api.Code.HA_NOT_AVAILABLE, f"{topic} accepts no messages now: its storage does not answer"
        ) from None


def _send(call: Call, topic: PublishedTopic, parent: TopicName, request: Any) -> Coroutine[Any, Any, Any] | None:
    """Publish the messages; the answer follows when all are stored. Returns a coroutine if other brokers own some
    of the queues. `parent`: the topic in the messages, which defines the accepted message types."""
    messages = request.messages
    accepted = accepted_types(call.session.services.registry.topics.find(parent))
    targets: list[tuple[int, Producer | None]] = []
    together: tuple[int, Producer | None] | None = None
    for message in messages:
        said = message.system_properties
        if said.message_type not in accepted:
            raise Refused(
                api.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"the topic accepts messages of type {', '.join(map(name_of, accepted))},"
                f" not {name_of(said.message_type)}",
            )
        if said.message_group:
            targets.append(topic.of_group(said.message_group))
        else:
            together = together or topic.next()
            targets.append(together)
    if all(producer is not None for _, producer in targets):
        _put(call, topic, messages, targets)
        return None
    if call.handed_on:
        raise NotOwnerError(f"{topic.name} is served by another broker")
    return _send_apart(call, topic, request, [number for number, _ in targets])


async def _send_apart(call: Call, topic: PublishedTopic, request: Any, numbers: Sequence[int]) -> Any:
    """Send messages when other brokers own some or all of the queues, or owned them until recently."""
    async with _patiently(call, topic.name):
        await topic.open()
    targets = [(number, topic.producer(number)) for number in numbers]
    if all(producer is not None for _, producer in targets):
        _put(call, topic, request.messages, targets)
        return None
    if any(message.system_properties.message_type == _T.TRANSACTION for message in request.messages):
        may_be_asked(call, topic.name)
    places: dict[int, list[int]] = {}
    for at, number in enumerate(numbers):
        places.setdefault(number, []).append(at)
    entries: list[Any] = [None] * len(numbers)
    await asyncio.gather(
        *(_send_to(call, topic.part(number), request, those, entries) for number, those in places.items())
    )
    return _response(call, entries)


async def _send_to(call: Call, queue: TopicName, request: Any, places: Sequence[int], entries: list[Any]) -> None:
    part = api.SendMessageRequest(messages=[request.messages[at] for at in places])
    try:
        answer = await at_owner(call, queue, part, twice=False)
        found = list(answer.entries) or [api.SendResultEntry(status=answer.status)] * len(places)
    except WeirError as failed:
        found = [api.SendResultEntry(status=status_of(failed))] * len(places)
    for at, entry in zip(places, found, strict=True):
        entries[at] = entry


def _put(
    call: Call, topic: PublishedTopic, messages: Sequence[Any], targets: Sequence[tuple[int, Producer | None]]
) -> None:
    answer = _Answer(call, messages)
    now_ms = call.session.clock.wall_ms()
    together: dict[Producer, tuple[list[int], list[bytes]]] = {}
    for at, (message, (number, producer)) in enumerate(zip(messages, targets, strict=True)):
        assert producer is not None
        encoded = encode_message(message_of(message, body_of(message, call.session.limits), now_ms))
        outgoing = _alone(call, topic.name, message, encoded, now_ms)
        if outgoing is None:
            places, batch = together.setdefault(producer, ([], []))
            places.append(at)
            batch.append(encoded)
        else:
            call.session.publishing.put(producer, outgoing, partial(answer.stored_alone, at, number))
    for producer, (places, batch) in together.items():
        call.session.publishing.add(producer, batch, partial(answer.stored, places))


def _alone(call: Call, topic: TopicName, message: Any, encoded: bytes, now_ms: int) -> Outgoing | None:
    """The entry of a delayed or half message; None for other messages."""
    said = message.system_properties
    if said.message_type == _T.TRANSACTION:
        may_be_asked(call, topic)
        return Outgoing(join_messages([encoded]), 1, BatchFormat.MESSAGES, half=preparation_of(topic, said))
    if not said.HasField("delivery_timestamp"):
        return None
    moment_ms = ms_of(said.delivery_timestamp)
    if moment_ms <= now_ms:
        return None
    return Outgoing(join_messages([encoded]), 1, BatchFormat.MESSAGES, deliver_at_ms=moment_ms)


class _Answer:
    """Collects the results of one request, and sends the answer when all are known."""

    __slots__ = ("_call", "_entries", "_left", "_messages")

    def __init__(self, call: Call, messages: Sequence[Any]) -> None:
        self._call = call
        self._messages = messages
        self._entries: list[Any] = [None] * len(messages)
        self._left = len(messages)

    def stored(self, places: Sequence[int], result: Receipt | WeirError, before: int) -> None:
        """Set the results of messages of one entry; `before`: number of messages before them in the entry."""
        for n, at in enumerate(places):
            if isinstance(result, WeirError):
                self._entries[at] = api.SendResultEntry(status=status_of(result))
            else:
                self._entries[at] = self._entry(at, offset=result.offset + before + n)
        self._count(len(places))

    def stored_alone(self, at: int, number: int, result: Receipt | WeirError, before: int) -> None:
        if isinstance(result, WeirError):
            self._entries[at] = api.SendResultEntry(status=status_of(result))
        elif not result.held:
            self._entries[at] = self._entry(at, offset=result.offset)
        else:
            said = self._messages[at].system_properties
            place = PlaceHandle(number, *result.position, said.message_id)
            if said.message_type == _T.TRANSACTION:
                self._entries[at] = self._entry(at, transaction_id=place.encode_half())
            else:
                self._entries[at] = self._entry(at, recall_handle=place.encode_recall())
        self._count(1)

    def _entry(self, at: int, **fields: Any) -> Any:
        message_id = self._messages[at].system_properties.message_id
        # As in RocketMQ, messages without a transaction have one, too.
        fields.setdefault("transaction_id", message_id)
        return api.SendResultEntry(status=ok(), message_id=message_id, **fields)

    def _count(self, stored: int) -> None:
        self._left -= stored
        if not self._left:
            self._call.answer(_response(self._call, self._entries))


def _response(call: Call, entries: Sequence[Any]) -> Any:
    """The answer to a send. Counts stored messages at the broker of the client's connection only."""
    if not call.handed_on:
        call.session.services.metrics.sent += sum(entry.status.code == api.Code.OK for entry in entries)
    codes = {entry.status.code for entry in entries}
    status = entries[0].status if len(codes) == 1 else _several()
    return api.SendMessageResponse(status=status, entries=entries)


def _several() -> Any:
    return api.Status(code=api.Code.MULTIPLE_RESULTS, message="send message with multiple results")


@calls("RecallMessage", api.RecallMessageRequest, api.RecallMessageResponse)
async def recall_message(call: Call, request: Any) -> Any:
    """Cancel a delayed message before its delivery time."""
    topic = topic_of(request.topic)
    if not request.recall_handle:
        raise Refused(api.Code.BAD_REQUEST, "recall handle is required")
    try:
        handle = recall_of(request.recall_handle)
    except WireError:
        raise Refused(api.Code.BAD_REQUEST, "recall handle is invalid") from None
    call.session.services.guard.check(call.role, topic, Action.PRODUCE)
    queue = await queue_name(call, topic, handle.partition, create=False)
    return await at_owner(call, queue, request, partial(_recalled, call, queue, handle))


async def _recalled(call: Call, queue: TopicName, handle: PlaceHandle) -> Any:
    found = await call.session.services.broker.topic(queue, role=call.role, create=False)
    held = None if found.stored is None else found.stored.held
    try:
        if held is None:
            raise NotHeldError("the topic has no delayed messages")
        await held.cancel(HeldId(handle.ledger, handle.entry))
    except NotHeldError:
        raise Refused(
            api.Code.BAD_REQUEST, "recall failed: the message was already delivered or recalled"
        ) from None
    return api.RecallMessageResponse(status=ok(), message_id=handle.message_id)
