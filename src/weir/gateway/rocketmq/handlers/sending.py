"""SendMessage: one message or several of one topic, and RecallMessage."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from weir.broker.api import Outgoing, Producer, Receipt
from weir.gateway.rocketmq.connection.calls import Call
from weir.gateway.rocketmq.errors import Refused, ok, status_of
from weir.gateway.rocketmq.message_types import accepted_types, name_of
from weir.gateway.rocketmq.names import lite_topic_of, topic_of
from weir.gateway.rocketmq.publish.checks import body_of, check_message
from weir.gateway.rocketmq.publish.partitions import PublishedTopic
from weir.gateway.rocketmq.registry import calls
from weir.gateway.rocketmq.transactions.checking import may_be_asked
from weir.gateway.rocketmq.transactions.preparing import preparation_of
from weir.model.batch import BatchFormat, HeldId
from weir.model.errors import NotHeldError, WeirError, WireError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.wire.messages import encode_message, join_messages
from weir.wire.rocketmq.handles import PlaceHandle, recall_of
from weir.wire.rocketmq.message import message_of
from weir.wire.rocketmq.proto import api, ms_of

_T = api.MessageType


@calls("SendMessage", api.SendMessageRequest, api.SendMessageResponse)
def send_message(call: Call, request: Any) -> Any:
    messages = request.messages
    if not messages:
        raise Refused(api.Code.MESSAGE_CORRUPTED, "no message to send")
    topic = topic_of(messages[0].topic)
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
        return _open_and_send(call, topic, messages)
    _send(call, known, messages)
    return None


async def _open_and_send(call: Call, topic: TopicName, messages: Sequence[Any]) -> None:
    _send(call, await call.session.publishing.topic(call.role, topic), messages)


def _send(call: Call, topic: PublishedTopic, messages: Sequence[Any]) -> None:
    """Each message is on its way when this returns; the answer follows when all of them are stored."""
    accepted = accepted_types(call.session.services.registry.topics.find(topic.name))
    for message in messages:
        kind = message.system_properties.message_type
        if kind not in accepted:
            raise Refused(
                api.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"the topic takes messages of type {', '.join(map(name_of, accepted))}, not {name_of(kind)}",
            )
    answer = _Answer(call, messages)
    now_ms = call.session.clock.wall_ms()
    together: dict[Producer, tuple[int, list[int], list[bytes]]] = {}
    for at, message in enumerate(messages):
        said = message.system_properties
        number, producer = topic.of_group(said.message_group) if said.message_group else topic.next()
        if not said.message_group and together:
            producer, (number, _, _) = next(iter(together.items()))
        encoded = encode_message(message_of(message, body_of(message, call.session.limits), now_ms))
        outgoing = _alone(call, topic.name, message, encoded, now_ms)
        if outgoing is None:
            together.setdefault(producer, (number, [], []))
            together[producer][1].append(at)
            together[producer][2].append(encoded)
        else:
            call.session.publishing.put(producer, outgoing, partial(answer.stored_alone, at, number))
    for producer, (_, places, batch) in together.items():
        call.session.publishing.add(producer, batch, partial(answer.stored, places))


def _alone(call: Call, topic: TopicName, message: Any, encoded: bytes, now_ms: int) -> Outgoing | None:
    """A message that waits for its moment or a decision; None of one that is seen at once."""
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
    """What is known of the messages of one request; said when all of it is known."""

    __slots__ = ("_call", "_entries", "_left", "_messages")

    def __init__(self, call: Call, messages: Sequence[Any]) -> None:
        self._call = call
        self._messages = messages
        self._entries: list[Any] = [None] * len(messages)
        self._left = len(messages)

    def stored(self, places: Sequence[int], result: Receipt | WeirError, before: int) -> None:
        """Messages of one entry, behind so many others."""
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
        return api.SendResultEntry(
            status=ok(), message_id=self._messages[at].system_properties.message_id, **fields
        )

    def _count(self, stored: int) -> None:
        self._left -= stored
        if self._left:
            return
        codes = {entry.status.code for entry in self._entries}
        status = self._entries[0].status if len(codes) == 1 else _several()
        self._call.answer(api.SendMessageResponse(status=status, entries=self._entries))


def _several() -> Any:
    return api.Status(code=api.Code.MULTIPLE_RESULTS, message="send message with multiple results")


@calls("RecallMessage", api.RecallMessageRequest, api.RecallMessageResponse)
async def recall_message(call: Call, request: Any) -> Any:
    """Of a message that waits for its moment: it will never be seen."""
    topic = topic_of(request.topic)
    if not request.recall_handle:
        raise Refused(api.Code.BAD_REQUEST, "recall handle is required")
    try:
        handle = recall_of(request.recall_handle)
    except WireError:
        raise Refused(api.Code.BAD_REQUEST, "recall handle is invalid") from None
    services = call.session.services
    services.guard.check(call.role, topic, Action.PRODUCE)
    partitions = await services.broker.partitions(topic, role=call.role, create=False)
    name = topic.at(handle.partition) if partitions else topic
    found = await services.broker.topic(name, role=call.role, create=False)
    held = None if found.stored is None else found.stored.held
    try:
        if held is None:
            raise NotHeldError("nothing waits here")
        await held.cancel(HeldId(handle.ledger, handle.entry))
    except NotHeldError:
        raise Refused(
            api.Code.BAD_REQUEST, "recall failed, the message is gone: it was delivered or recalled before"
        ) from None
    return api.RecallMessageResponse(status=ok(), message_id=handle.message_id)
