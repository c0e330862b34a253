"""Routes for messages of stored topics: peek and find, terminate, truncate, and compaction.

The HTTP answer for a message contains its payload, and its metadata in headers.
"""

import json
import re
from typing import Literal

from weir.admin.context import AdminContext
from weir.admin.names import (
    ABOUT_ONE_TOPIC,
    CONFLICT,
    LongRunningProcessStatus,
    MessageIdBody,
    ResetCursorData,
    batch_at,
    id_at,
    id_body,
    offset_at,
    subscription_of,
    topic_of,
    topic_path,
)
from weir.admin.topic_stats import OfflineStatsBody, moment
from weir.broker.api.stats import CompactionStatus
from weir.broker.api.topics import Topic
from weir.model.batch import Batch, BatchFlags
from weir.model.errors import WireError
from weir.model.registry import Action
from weir.model.topics import Domain, TopicName
from weir.rest.http import Response
from weir.rest.routes import BYTES, Call, Long, Positive, Query, RefusedError, Route
from weir.wire.formats.table import pulsar_entry
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.batch import open_payload
from weir.wire.pulsar.message import is_batch, parse_metadata, split_message

_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_PLAIN = re.compile(r"[ -~]*")


def message_answer(batch: Batch, at: MessageIdBody) -> Response:
    """The batch in the format of Pulsar's admin clients: decompressed, but not split into messages."""
    try:
        parts = split_message(memoryview(pulsar_entry(batch).payload))
        metadata = parse_metadata(parts)
        encrypted = bool(metadata.encryption_keys)
        payload = parts.payload if encrypted else open_payload(metadata, parts.payload)
    except WireError as bad:
        raise RefusedError(422, f"the message cannot be read: {bad}") from bad
    headers = _headers(metadata, batch, at)
    headers["X-Pulsar-Is-Encrypted"] = str(encrypted).lower()
    return Response(200, bytes(payload), BYTES, {name: text for name, text in headers.items() if _plain(text)})


def _headers(metadata: api.MessageMetadata, batch: Batch, at: MessageIdBody) -> dict[str, str]:
    headers = {
        "X-Pulsar-Message-ID": f"{at.ledgerId}:{at.entryId}",
        "X-Pulsar-publish-time": moment(metadata.publish_time),
        "X-Pulsar-producer-name": _text(metadata.producer_name),
        "X-Pulsar-sequence-id": str(metadata.sequence_id),
        "X-Pulsar-Broker-Entry-METADATA-timestamp": moment(batch.append_ms),
        "X-Pulsar-Broker-Entry-METADATA-index": str(batch.end_offset - 1),
    }
    if metadata.HasField("event_time") and metadata.event_time:
        headers["X-Pulsar-event-time"] = moment(metadata.event_time)
    if metadata.HasField("deliver_at_time"):
        headers["X-Pulsar-deliver-at-time"] = moment(metadata.deliver_at_time)
    if is_batch(metadata):
        headers["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
    if metadata.HasField("partition_key"):
        headers["X-Pulsar-partition-key"] = _text(metadata.partition_key)
        headers["X-Pulsar-partition-key-b64-encoded"] = str(metadata.partition_key_b64_encoded).lower()
    properties = {_text(pair.key): _text(pair.value) for pair in metadata.properties}
    if properties:  # as newer clients read them, and as older ones do
        headers["X-Pulsar-PROPERTY"] = json.dumps(properties)
    for key, value in properties.items():
        if _TOKEN.fullmatch(key):
            headers[f"X-Pulsar-PROPERTY-{key}"] = value
    return headers


def _plain(text: str) -> bool:
    """Whether the text is valid in a header; other values are left out (the JSON also contains the properties)."""
    return _PLAIN.fullmatch(text) is not None and text == text.strip()


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


_TOPIC = topic_path(Domain.PERSISTENT)
_TAG = "messages"
#: Maximum position of a peek; beyond it a consumer is the right tool.
_MAX_LOOK = 10_000
#: Compaction states in the order in which they determine the state of a partitioned topic.
_WORST_FIRST = (
    CompactionStatus.RUNNING,
    CompactionStatus.ERROR,
    CompactionStatus.NOT_RUN,
    CompactionStatus.SUCCESS,
)
_UNREADABLE = {422: "the message cannot be shown", **ABOUT_ONE_TOPIC}


class Messages:
    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._terminate_route = Route(
            "POST",
            f"{_TOPIC}/terminate",
            "Terminate a topic: it accepts no more messages, permanently.",
            self._terminate,
            answer=MessageIdBody,
            refusals={**ABOUT_ONE_TOPIC, **CONFLICT},
            tag=_TAG,
        )

    def routes(self) -> list[Route]:
        return [*self._reads(), *self._positions(), *self._ends()]

    def _reads(self) -> list[Route]:
        def read(path: str, summary: str, action: object, **more: object) -> Route:
            return Route("GET", path, summary, action, media=BYTES, refusals=_UNREADABLE, tag=_TAG, **more)  # type: ignore[arg-type]

        start = Literal["earliest", "latest"]
        return [
            read(
                f"{_TOPIC}/subscription/{{subscription}}/position/{{position}}",
                "The message (or batch) at a place among the unacknowledged ones, from 1 on.",
                self._peek,
            ),
            read(f"{_TOPIC}/ledger/{{ledger}}/entry/{{entry}}", "The message (or batch) of an id.", self._by_id),
            read(
                f"{_TOPIC}/examinemessage",
                "The message (or batch) at a place from the beginning or the end.",
                self._examine,
                query=(
                    Query("initialPosition", start, "from where to count", "latest"),
                    Query("messagePosition", Positive, "which, from 1 on", 1),
                ),
            ),
        ]

    def _positions(self) -> list[Route]:
        about = ABOUT_ONE_TOPIC
        return [
            Route(
                "GET",
                f"{_TOPIC}/lastMessageId",
                "The id of the last message.",
                self._last,
                answer=MessageIdBody,
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "GET",
                f"{_TOPIC}/messageid/{{timestamp}}",
                "The id of the first message since a moment.",
                self._since,
                answer=MessageIdBody,
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "PUT",
                f"{_TOPIC}/backlogSize",
                "Approximate bytes from a message to the end.",
                self._backlog_size,
                body=ResetCursorData,
                answer=Long,
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "GET",
                f"{_TOPIC}/backlog",
                "Backlog of each subscription.",
                self._backlog,
                answer=OfflineStatsBody,
                refusals=about,
                tag=_TAG,
            ),
        ]

    def _ends(self) -> list[Route]:
        path, about = f"{_TOPIC}/compaction", {**ABOUT_ONE_TOPIC, **CONFLICT}
        return [
            self._terminate_route,
            Route(
                "POST",
                f"{_TOPIC}/terminate/partitions",
                "Terminate each partition of a topic.",
                self._terminate_parts,
                answer=dict[str, MessageIdBody],
                refusals=about,
                tag=_TAG,
            ),
            Route(
                "DELETE", f"{_TOPIC}/truncate", "Delete all messages.", self._truncate, refusals=about, tag=_TAG
            ),
            Route("PUT", path, "Start a compaction.", self._compact, refusals=about, tag=_TAG),
            Route(
                "GET",
                path,
                "Status of the last compaction.",
                self._compaction,
                answer=LongRunningProcessStatus,
                refusals=about,
                tag=_TAG,
            ),
        ]

    def _consumed(self, call: Call) -> TopicName:
        name = topic_of(call.path)
        self._context.authoriser.check(call.role, Action.CONSUME, name)
        return name

    def _administered(self, call: Call) -> TopicName:
        name = topic_of(call.path)
        self._context.authoriser.check_admin(call.role, name)
        return name

    # --- reading ------------------------------------------------------------------------------------------------

    async def _peek(self, call: Call) -> Response:
        stored = await self._context.stored_one(self._consumed(call))
        subscription = stored.subscription(subscription_of(call.path))
        number = call.path["position"]
        if number > _MAX_LOOK:
            raise RefusedError(412, f"a peek reads at most {_MAX_LOOK} messages", hint="use a consumer")
        return _answer(stored.topic, await subscription.waiting_batch(number))

    async def _by_id(self, call: Call) -> Response:
        stored = await self._context.stored_one(self._consumed(call))
        topic = stored.topic
        offsets, entry = stored.ledger_range(call.path["ledger"]), call.path["entry"]
        if offsets is None or not 0 <= entry < offsets[1] - offsets[0]:
            return _answer(topic, None)
        return _answer(topic, await batch_at(topic, offsets[0] + entry))

    async def _examine(self, call: Call) -> Response:
        topic = (await self._context.stored_one(self._consumed(call))).topic
        nth = call.query["messagePosition"]
        if call.query["initialPosition"] == "earliest":
            offset = topic.start_offset + nth - 1
        else:
            offset = topic.end_offset - nth
        return _answer(topic, await batch_at(topic, offset))

    # --- positions ----------------------------------------------------------------------------------------------

    async def _last(self, call: Call) -> MessageIdBody:
        topic = (await self._context.stored_one(self._found(call))).topic
        return id_body(topic, await topic.last_position())

    async def _since(self, call: Call) -> MessageIdBody:
        topic = (await self._context.stored_one(self._consumed(call))).topic
        return id_at(topic, await topic.offset_at(call.path["timestamp"]))

    def _found(self, call: Call) -> TopicName:
        name = topic_of(call.path)
        self._context.authoriser.check_lookup(call.role, name)
        return name

    async def _backlog_size(self, call: Call) -> int:
        stored = await self._context.stored_one(self._consumed(call))
        return stored.bytes_from(await offset_at(stored.topic, call.body))

    async def _backlog(self, call: Call) -> OfflineStatsBody:
        stored = await self._context.stored_one(self._consumed(call))
        topic = stored.topic
        waiting = {name: subscription.backlog for name, subscription in stored.subscriptions.items()}
        return OfflineStatsBody(
            totalMessages=topic.end_offset - topic.start_offset,
            messageBacklog=sum(waiting.values()),
            storageSize=stored.log_bytes,
            cursorDetails=waiting,
            topicName=str(topic.name),
        )

    # --- ending -------------------------------------------------------------------------------------------------

    async def _terminate(self, call: Call) -> MessageIdBody:
        stored = await self._context.stored_one(self._administered(call))
        return id_body(stored.topic, await stored.terminate())

    async def _terminate_parts(self, call: Call) -> dict[str, MessageIdBody]:
        name = self._administered(call)
        record = await self._context.registry.ensure_topic(name, create=False)
        if not record.partitions or name.partition is not None:
            raise RefusedError(405, f"{name} is not partitioned", hint="terminate it as a whole")
        done = await self._context.on_topics(call, record.parts(), route=self._terminate_route)
        return {str(part.partition): last for part, last in done.items()}

    async def _truncate(self, call: Call) -> None:
        name = self._administered(call)
        if await self._context.on_partitions(call, name) is None:
            await (await self._context.stored_one(name)).truncate()

    async def _compact(self, call: Call) -> None:
        name = self._administered(call)
        if await self._context.on_partitions(call, name) is not None:
            return
        topic = await self._context.stored_one(name)
        if topic.compaction is CompactionStatus.RUNNING:
            raise RefusedError(409, "a compaction is running already")
        topic.compact()

    async def _compaction(self, call: Call) -> LongRunningProcessStatus:
        name = self._administered(call)
        parts = await self._context.on_partitions(call, name)
        if parts is not None:
            found: list[LongRunningProcessStatus] = list(parts.values())
            return min(found, key=lambda one: _WORST_FIRST.index(CompactionStatus(one.status)))
        status = (await self._context.stored_one(name)).compaction
        failed = "the compaction failed; see the log" if status is CompactionStatus.ERROR else ""
        return LongRunningProcessStatus(status.value, failed)


def _answer(topic: Topic, batch: Batch | None) -> Response:
    if batch is None or batch.flags & BatchFlags.UNSEEN:
        raise RefusedError(404, f"{topic.name} has no such message")
    return message_answer(batch, id_at(topic, batch.base_offset))
