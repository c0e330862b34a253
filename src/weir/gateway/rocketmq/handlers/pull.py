"""Reads by offset, and committed offsets of groups: PullMessage, UpdateOffset, GetOffset, QueryOffset."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from weir.broker.api.topics import LogReader, Topic
from weir.gateway.rocketmq.call import Call, calls
from weir.gateway.rocketmq.errors import Refused, ok
from weir.gateway.rocketmq.forwarding import at_coordinator, at_owner, at_owner_streamed
from weir.gateway.rocketmq.names import filter_of, group_of, topic_of
from weir.model.batch import Batch, BatchFlags
from weir.model.errors import UnknownGroupError, WeirError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset
from weir.wire.formats.table import messages_of
from weir.wire.rocketmq import rocketmq_pb2 as api
from weir.wire.rocketmq.message import outgoing_of
from weir.wire.rocketmq.proto import ms_of, set_ms

_READ_BYTES = 4 * 1024 * 1024
_LONG_POLLING_S = 20.0


@calls("PullMessage", api.PullMessageRequest, api.PullMessageResponse, streams=True)
async def pull_message(call: Call, request: Any) -> None:
    """Read messages from an offset; the group's committed offset does not change."""
    group_of(request.group)
    if request.offset < 0:
        raise Refused(api.Code.ILLEGAL_OFFSET, "the offset cannot be negative")
    if request.batch_size <= 0:
        raise Refused(api.Code.BAD_REQUEST, "the batch size must be positive")
    queue = await _queue_name(call, request.message_queue)
    answers = await at_owner_streamed(call, queue, request, partial(_pulled, call, queue, request))
    if not call.handed_on:
        call.session.services.metrics.received += sum(answer.HasField("message") for answer in answers)
    for answer in answers:
        call.send(answer)
    call.finish()


async def _pulled(call: Call, queue: TopicName, request: Any) -> list[Any]:
    topic = await call.session.services.broker.topic(queue, role=call.role, create=False)
    offset = request.offset
    if not topic.start_offset <= offset <= topic.end_offset:
        raise Refused(
            api.Code.ILLEGAL_OFFSET,
            f"offset {offset} is out of range; the queue has offsets {topic.start_offset} to {topic.end_offset}",
        )
    if offset >= topic.end_offset:
        await _wait(call, topic, offset, ms_of(request.long_polling_timeout) / 1000)
    answers, after = await _read(topic, request, offset)
    code, words = (api.Code.OK, "OK") if answers else (api.Code.MESSAGE_NOT_FOUND, "no new message")
    status = api.PullMessageResponse(status=api.Status(code=code, message=words))
    return [status, *answers, api.PullMessageResponse(next_offset=after)]


async def _wait(call: Call, topic: Topic, offset: int, wanted_s: float) -> None:
    remaining_s = call.remaining_s
    wait_s = min(wanted_s, _LONG_POLLING_S, _LONG_POLLING_S if remaining_s is None else remaining_s * 0.9)
    if wait_s > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await topic.wait_beyond(offset)


async def _read(topic: Topic, request: Any, offset: int) -> tuple[list[Any], int]:
    """Messages from an offset, and the next offset to read."""
    reader = topic.reader()
    passing = reader.passing(filter_of(request.filter_expression))
    found: list[Any] = []
    end = topic.stable_offset
    while offset < end and len(found) < request.batch_size:
        batches = await reader.read(offset, _READ_BYTES)
        if not batches:
            break
        for batch in batches:
            if len(found) >= request.batch_size or batch.base_offset >= end:
                break
            seen = _both(reader.visible(batch), 0 if _is_aborted(reader, batch) else passing(batch))
            most = request.batch_size - len(found)
            some, offset = _messages(topic, request, batch, offset, most=most, seen=seen)
            found += some
    return found, offset


def _is_aborted(reader: LogReader, batch: Batch) -> bool:
    """Whether the batch belongs to an aborted transaction, so that consumers must not receive it."""
    if batch.stamp is None or not batch.flags & BatchFlags.TRANSACTIONAL:
        return False
    base = batch.base_offset
    return any(
        one.producer_id == batch.stamp.producer_id and one.first_offset <= base < one.last_offset
        for one in reader.aborted(base, batch.end_offset)
    )


def _both(one: int | None, other: int | None) -> int | None:
    """Intersect two bit masks of messages; None means all."""
    return other if one is None else one if other is None else one & other


def _messages(
    topic: Topic, request: Any, batch: Batch, offset: int, *, most: int, seen: int | None
) -> tuple[list[Any], int]:
    """Messages of a batch from an offset, and the next offset. `seen`: bit mask of visible messages; None: all."""
    index = max(0, offset - batch.base_offset)
    if batch.flags & BatchFlags.UNSEEN or seen == 0:
        return [], batch.end_offset
    messages = messages_of(batch)
    found: list[Any] = []
    while index < batch.count and len(found) < most:
        if seen is None or seen >> index & 1:
            message = messages[index] if len(messages) == batch.count else messages[0]
            at = batch.base_offset + index
            out = outgoing_of(message, request.message_queue.topic, partition=topic.name.partition or 0, offset=at)
            set_ms(out.system_properties.store_timestamp, batch.append_ms)
            found.append(api.PullMessageResponse(message=out))
        index += 1
    return found, batch.base_offset + index


@calls("QueryOffset", api.QueryOffsetRequest, api.QueryOffsetResponse)
async def query_offset(call: Call, request: Any) -> Any:
    queue = await _queue_name(call, request.message_queue)
    return await at_owner(call, queue, request, partial(_offset_found, call, queue, request))


async def _offset_found(call: Call, queue: TopicName, request: Any) -> Any:
    topic = await call.session.services.broker.topic(queue, role=call.role, create=False)
    match request.query_offset_policy:
        case api.QueryOffsetPolicy.BEGINNING:
            offset = topic.start_offset
        case api.QueryOffsetPolicy.END:
            offset = topic.end_offset
        case _:
            if not request.HasField("timestamp"):
                raise Refused(api.Code.BAD_REQUEST, "the timestamp is missing")
            offset = await topic.offset_at(ms_of(request.timestamp))
    return api.QueryOffsetResponse(status=ok(), offset=offset)


@calls("GetOffset", api.GetOffsetRequest, api.GetOffsetResponse)
async def get_offset(call: Call, request: Any) -> Any:
    group, name = group_of(request.group), await _queue_name(call, request.message_queue)
    return await at_coordinator(call, group, request, partial(_position, call, group, name))


async def _position(call: Call, group: str, name: TopicName) -> Any:
    found = (await call.session.services.positions.of(call.role).fetch(group, [name])).get(name)
    if (
        isinstance(found, UnknownGroupError)
        or found is None
        or (isinstance(found, CommittedOffset) and found.offset < 0)
    ):
        raise Refused(api.Code.OFFSET_NOT_FOUND, "the group has no offset in the queue")
    if isinstance(found, WeirError):
        raise found
    return api.GetOffsetResponse(status=ok(), offset=found.offset)


@calls("UpdateOffset", api.UpdateOffsetRequest, api.UpdateOffsetResponse)
async def update_offset(call: Call, request: Any) -> Any:
    group, name = group_of(request.group), await _queue_name(call, request.message_queue)
    if request.offset < 0:
        raise Refused(api.Code.ILLEGAL_OFFSET, "the offset cannot be negative")
    return await at_coordinator(call, group, request, partial(_moved, call, group, name, request.offset))


async def _moved(call: Call, group: str, name: TopicName, offset: int) -> Any:
    positions = call.session.services.positions.of(call.role)
    failed = (await positions.commit(group, {name: CommittedOffset(offset)})).get(name)
    if failed is not None:
        raise failed
    return api.UpdateOffsetResponse(status=ok())


async def _queue_name(call: Call, queue: Any) -> TopicName:
    topic = topic_of(queue.topic)
    services = call.session.services
    services.guard.check(call.role, topic, Action.CONSUME)
    partitions = await services.broker.partitions(topic, role=call.role, create=False)
    if not 0 <= queue.id < max(1, partitions):
        raise Refused(api.Code.BAD_REQUEST, f"the topic has no queue {queue.id}")
    return topic.at(queue.id) if partitions else topic
