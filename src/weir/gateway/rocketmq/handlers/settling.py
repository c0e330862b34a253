"""What becomes of a received message: AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue."""

from typing import Any

from weir.gateway.rocketmq.connection.calls import Call
from weir.gateway.rocketmq.consume.links import Link, Pending
from weir.gateway.rocketmq.errors import Refused, ok, status_of
from weir.gateway.rocketmq.names import group_of, lite_topic_of, topic_of
from weir.gateway.rocketmq.registry import calls
from weir.model.errors import WeirError, WireError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.wire.rocketmq.handles import ReceiptHandle, receipt_of
from weir.wire.rocketmq.proto import api, ms_of

_MAX_INVISIBLE_MS = 12 * 3_600_000


@calls("AckMessage", api.AckMessageRequest, api.AckMessageResponse)
def ack_message(call: Call, request: Any) -> Any:
    if not request.entries:
        raise Refused(api.Code.BAD_REQUEST, "no message to acknowledge")
    lites = {entry.lite_topic for entry in request.entries}
    if len(lites) > 1:
        raise Refused(api.Code.BAD_REQUEST, "messages of several lite topics are acknowledged one by one")
    topic, group = _checked(call, request, lites.pop())
    known = call.session.services.groups.find(topic, group)
    if known is None or not known.links:
        return _open_and_ack(call, topic, group, request)
    return _acknowledged(call, topic, group, request)


async def _open_and_ack(call: Call, topic: TopicName, group: str, request: Any) -> Any:
    await call.session.services.groups.of(topic, group).open(call.role)
    return _acknowledged(call, topic, group, request)


def _acknowledged(call: Call, topic: TopicName, group: str, request: Any) -> Any:
    response = api.AckMessageResponse()
    codes: set[int] = set()
    for entry in request.entries:
        try:
            _ack(call, topic, group, _handle(entry.receipt_handle))
            status = ok()
        except WeirError as refused:
            status = status_of(refused)
        codes.add(status.code)
        response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status)
    if len(codes) == 1:
        response.status.CopyFrom(response.entries[0].status)
    else:
        response.status.code = api.Code.MULTIPLE_RESULTS
        response.status.message = "ack message with multiple results"
    return response


def _ack(call: Call, topic: TopicName, group: str, handle: ReceiptHandle) -> None:
    link, _ = _held(call, topic, group, handle)
    link.ack(handle.offset)


@calls("ChangeInvisibleDuration", api.ChangeInvisibleDurationRequest, api.ChangeInvisibleDurationResponse)
async def change_invisible_duration(call: Call, request: Any) -> Any:
    topic, group = _checked(call, request, request.lite_topic)
    invisible_ms = ms_of(request.invisible_duration)
    if invisible_ms < 0:
        raise Refused(api.Code.ILLEGAL_INVISIBLE_TIME, "the invisibleTime cannot be negative")
    if invisible_ms > _MAX_INVISIBLE_MS:
        raise Refused(
            api.Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {_MAX_INVISIBLE_MS}"
        )
    handle = _handle(request.receipt_handle)
    await call.session.services.groups.of(topic, group).open(call.role)
    link, pending = _held(call, topic, group, handle)
    if pending is None:
        raise _invalid("receipt handle is expired")
    changed = link.prolong(handle, pending, invisible_ms)
    return api.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=changed.encode())


@calls(
    "ForwardMessageToDeadLetterQueue",
    api.ForwardMessageToDeadLetterQueueRequest,
    api.ForwardMessageToDeadLetterQueueResponse,
)
async def forward_message_to_dead_letter_queue(call: Call, request: Any) -> Any:
    topic, group = _checked(call, request, request.lite_topic)
    handle = _handle(request.receipt_handle)
    await call.session.services.groups.of(topic, group).open(call.role)
    link, _ = _held(call, topic, group, handle)
    link.reject(handle.offset)
    return api.ForwardMessageToDeadLetterQueueResponse(status=ok())


def _checked(call: Call, request: Any, lite: str = "") -> tuple[TopicName, str]:
    topic, group = topic_of(request.topic), group_of(request.group)
    if lite:
        topic = lite_topic_of(topic, lite)
    call.session.services.guard.check(call.role, topic, Action.CONSUME, subscription=group)
    return topic, group


def _handle(text: str) -> ReceiptHandle:
    try:
        return receipt_of(text)
    except WireError:
        raise _invalid("receipt handle is invalid") from None


def _held(call: Call, topic: TopicName, group: str, handle: ReceiptHandle) -> tuple[Link, Pending | None]:
    """Where the message is, and who has it. One that was received before this broker had the queue is nobody's,
    and still its receiver's to acknowledge until its time is over."""
    found = call.session.services.groups.find(topic, group)
    link = None if found is None else found.links.get(handle.partition)
    if link is None:
        raise Refused(api.Code.HA_NOT_AVAILABLE, "the queue is served by another broker")
    pending = link.has(handle)
    if pending is None and (handle.offset in link.pending or handle.visible_ms <= call.session.clock.wall_ms()):
        raise _invalid("receipt handle is expired")
    return link, pending


def _invalid(what: str) -> Refused:
    return Refused(api.Code.INVALID_RECEIPT_HANDLE, what)
