"""Settlement of messages: AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue."""

from collections.abc import Sequence
from typing import Any

from weir.gateway.rocketmq.call import Call, calls
from weir.gateway.rocketmq.errors import MOVED, Refused, ok, status_of
from weir.gateway.rocketmq.forwarding import at_owner, queue_name
from weir.gateway.rocketmq.group_topic import Link, Pending
from weir.gateway.rocketmq.names import group_of, lite_topic_of, topic_of
from weir.model.errors import NotOwnerError, WeirError, WireError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.wire.rocketmq import rocketmq_pb2 as api
from weir.wire.rocketmq.handles import ReceiptHandle, receipt_of
from weir.wire.rocketmq.proto import ms_of

_MAX_INVISIBLE_MS = 12 * 3_600_000


@calls("AckMessage", api.AckMessageRequest, api.AckMessageResponse)
def ack_message(call: Call, request: Any) -> Any:
    if not request.entries:
        raise Refused(api.Code.BAD_REQUEST, "no message to acknowledge")
    lites = {entry.lite_topic for entry in request.entries}
    if len(lites) > 1:
        raise Refused(api.Code.BAD_REQUEST, "one request may acknowledge messages of one lite topic only")
    topic, group = _checked(call, request, lites.pop())
    known = call.session.services.groups.find(topic, group)
    if known is None or not all(known.has_queue(_partition(entry)) for entry in request.entries):
        return _find_and_ack(call, topic, group, request)
    try:
        return _acknowledged(call, topic, group, request)
    except MOVED:
        return _find_and_ack(call, topic, group, request)


def _partition(entry: Any) -> int:
    """The queue of an entry; -1 for an invalid handle, which any broker can refuse."""
    try:
        return receipt_of(entry.receipt_handle).partition
    except WireError:
        return -1


async def _find_and_ack(call: Call, topic: TopicName, group: str, request: Any) -> Any:
    """Acknowledge the entries of each queue at its owner."""
    places: dict[int, list[int]] = {}
    for at, entry in enumerate(request.entries):
        places.setdefault(_partition(entry), []).append(at)
    entries: list[Any] = [None] * len(request.entries)
    for number, those in places.items():
        part = api.AckMessageRequest(group=request.group, topic=request.topic)
        part.entries.extend(request.entries[at] for at in those)
        if number < 0:
            found = _acknowledged(call, topic, group, part).entries
        else:
            found = await _acknowledged_there(call, topic, group, number, part)
        for at, entry in zip(those, found, strict=True):
            entries[at] = entry
    return _response(entries)


async def _acknowledged_there(call: Call, topic: TopicName, group: str, number: int, part: Any) -> Sequence[Any]:
    async def here() -> Any:
        await call.session.services.groups.of(topic, group).open(call.role)
        return _acknowledged(call, topic, group, part)

    try:
        queue = await queue_name(call, topic, number)
        answer = await at_owner(call, queue, part, here)
        if answer.entries:
            return list(answer.entries)
        status = answer.status
    except WeirError as failed:
        status = status_of(failed)
    return [
        api.AckMessageResultEntry(message_id=one.message_id, receipt_handle=one.receipt_handle, status=status)
        for one in part.entries
    ]


def _acknowledged(call: Call, topic: TopicName, group: str, request: Any) -> Any:
    entries: list[Any] = []
    for entry in request.entries:
        try:
            _ack(call, topic, group, _handle(entry.receipt_handle))
            status = ok()
        except MOVED:
            raise  # the caller finds the new owner
        except WeirError as refused:
            status = status_of(refused)
        entries.append(
            api.AckMessageResultEntry(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
            )
        )
    return _response(entries)


def _response(entries: Sequence[Any]) -> Any:
    response = api.AckMessageResponse(entries=entries)
    if len({entry.status.code for entry in entries}) == 1:
        response.status.CopyFrom(entries[0].status)
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

    async def here() -> Any:
        await call.session.services.groups.of(topic, group).open(call.role)
        link, pending = _held(call, topic, group, handle)
        if pending is None:
            raise _invalid("receipt handle is expired")
        changed = link.prolong(handle, pending, invisible_ms)
        return api.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=changed.encode())

    return await at_owner(call, await queue_name(call, topic, handle.partition), request, here)


@calls(
    "ForwardMessageToDeadLetterQueue",
    api.ForwardMessageToDeadLetterQueueRequest,
    api.ForwardMessageToDeadLetterQueueResponse,
)
async def forward_message_to_dead_letter_queue(call: Call, request: Any) -> Any:
    topic, group = _checked(call, request, request.lite_topic)
    handle = _handle(request.receipt_handle)

    async def here() -> Any:
        await call.session.services.groups.of(topic, group).open(call.role)
        link, _ = _held(call, topic, group, handle)
        link.reject(handle.offset)
        return api.ForwardMessageToDeadLetterQueueResponse(status=ok())

    return await at_owner(call, await queue_name(call, topic, handle.partition), request, here)


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
    """The link of a handle, and its invisible message. The message is None if the receiver got it before this
    broker owned the queue; the receiver may still acknowledge it until its invisible duration ends."""
    found = call.session.services.groups.find(topic, group)
    link = None if found is None else found.links.get(handle.partition)
    if link is None or not link.alive:
        raise NotOwnerError("the queue is served by another broker")
    pending = link.has(handle)
    if pending is None and (handle.offset in link.pending or handle.visible_ms <= call.session.clock.wall_ms()):
        raise _invalid("receipt handle is expired")
    return link, pending


def _invalid(what: str) -> Refused:
    return Refused(api.Code.INVALID_RECEIPT_HANDLE, what)
