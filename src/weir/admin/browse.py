"""Looking at stored messages of any protocol by offset, moment or key, and sending one: for people.

Offsets of a topic, which Pulsar has no API for: its first and last, those of moments, and moving there.

Messages found by their key, of every protocol, by the topic's index of keys.
"""

import base64
import binascii
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct, field

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_ONE_TOPIC, CONFLICT, id_at, subscription_of, topic_of
from weir.admin.subscriptions import WaitingMessage, shown_messages
from weir.broker.api.producers import Outgoing, ProducerRequest
from weir.broker.api.schemas import SchemaData
from weir.broker.api.topics import LogReader, StoredTopic, Topic
from weir.model.batch import Batch, BatchFlags, BatchFormat
from weir.model.errors import SchemaNotFoundError, WireError
from weir.model.ids import Buffer
from weir.model.messages import Message
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.rest.routes import BadRequestError, Call, Natural, Query, Route
from weir.runtime.tasks import Turns
from weir.wire.formats.messages import encode_messages
from weir.wire.formats.table import messages_of

_BASE = "/admin/weir/v1/messages/persistent/{tenant}/{namespace}/{topic}"
_TAG = "messages"
_MAX_PAGE = 200
#: What one call reads at the most: the rest is for the next.
_READ_BYTES = 1024 * 1024
_LOOKED_BYTES = 16 * 1024 * 1024
_LOOKED_MESSAGES = 20_000
#: What is shown of a value; who wants all of a larger one is a consumer.
_SHOWN_BYTES = 64 * 1024

_Base64 = Annotated[str, Meta(max_length=16 * 1024 * 1024)]


class BrowsedMessage(Struct, rename="camel"):
    """`key`, `value` and the values of headers are base64; None where there are none."""

    offset: int
    ledger: int
    entry: int
    key: str | None
    value: str | None
    #: Of the whole value; `cut`: only its beginning is here.
    size: int
    cut: bool
    headers: list[tuple[str, str | None]]
    publish_ms: int
    event_ms: int | None
    append_ms: int
    #: By which protocol it came: `pulsar`, `kafka`, or `messages`.
    format: str
    #: Of a transaction: whether it was aborted, or is not decided yet.
    transaction: str | None = None


class BrowsedPage(Struct, rename="camel"):
    """`next`: the offset from which another call goes on; None at the end."""

    messages: list[BrowsedMessage]
    start: int
    end: int
    next: int | None = None


class SentMessage(Struct, rename="camel"):
    """`key`, `value` and the values of headers are base64. `deliver_at_ms`: when it may be seen, if later."""

    value: _Base64 | None = None
    key: _Base64 | None = None
    headers: Annotated[list[tuple[str, str | None]], Meta(max_length=1000)] = field(default_factory=list)
    event_ms: Natural | None = None
    deliver_at_ms: Natural | None = None


class SentAnswer(Struct, rename="camel"):
    topic: str
    offset: int
    ledger: int
    entry: int
    held: bool


class Browse:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        limit = Annotated[int, Meta(ge=1, le=_MAX_PAGE)]
        return [
            Route(
                "GET",
                _BASE,
                "Messages in the order of their offsets.",
                self._list,
                answer=BrowsedPage,
                query=(
                    Query("offset", Natural, "from this one on"),
                    Query("moment", Natural, "from the first on that was stored then or later, in ms since 1970"),
                    Query("last", Annotated[int, Meta(ge=1, le=_MAX_PAGE)], "so many before the end"),
                    Query("key", str, "only those with this key, as text"),
                    Query("limit", limit, "how many", 50),
                ),
                refusals=ABOUT_ONE_TOPIC,
                tag=_TAG,
            ),
            Route(
                "POST",
                _BASE,
                "Store one message; of a partitioned topic, in the partition of its key.",
                self._send,
                body=SentMessage,
                answer=SentAnswer,
                refusals={**ABOUT_ONE_TOPIC, **CONFLICT},
                tag=_TAG,
            ),
        ]

    # --- looking ------------------------------------------------------------------------------------------------

    async def _list(self, call: Call) -> BrowsedPage:
        name = topic_of(call.path)
        self._context.authoriser.check(call.role, Action.CONSUME, name)
        topic = (await self._context.stored_one(name)).topic
        reader, asked = topic.reader(), call.query
        start = max(reader.start_offset, topic.start_offset)
        at = start
        if asked["moment"] is not None:
            at = await reader.offset_at(asked["moment"])
        elif asked["last"] is not None:
            at = topic.end_offset - asked["last"]
        elif asked["offset"] is not None:
            at = asked["offset"]
        key = None if asked["key"] is None else asked["key"].encode()
        page = BrowsedPage([], start, topic.end_offset)
        await self._fill(page, topic, reader, max(at, start), key=key, limit=asked["limit"])
        return page

    async def _fill(
        self, page: BrowsedPage, topic: Topic, reader: LogReader, at: int, *, key: bytes | None, limit: int
    ) -> None:
        turns = Turns(self._context.clock)
        size = looked = 0
        while at < page.end:
            # What people look at is not what consumers are given: it is not counted, where it need not be.
            batches = await (topic.read if reader.whole else reader.read)(at, _READ_BYTES)
            if not batches:
                return
            for batch in batches:
                for offset, message in _visible(batch, reader, at):
                    if len(page.messages) == limit or looked == _LOOKED_MESSAGES:
                        page.next = offset
                        return
                    looked += 1
                    if key is None or message.key == key:
                        page.messages.append(_shown(topic, batch, offset, message))
                size += len(batch.payload)
                at = max(at, batch.end_offset)
                await turns.next()
            if size > _LOOKED_BYTES and at < page.end:
                page.next = at
                return

    # --- sending ------------------------------------------------------------------------------------------------

    async def _send(self, call: Call) -> SentAnswer:
        name = topic_of(call.path)
        self._context.authoriser.check(call.role, Action.PRODUCE, name)
        parts = await self._context.partitions(name)
        if parts is not None:
            chosen = parts[partition_of(_bytes(call.body.key), len(parts), self._context.clock.wall_ms())]
            done = await self._context.on_topics(call, [chosen])
            answer: SentAnswer = done[chosen]
            return answer
        topic = await self._context.load(name)
        body, now_ms = call.body, self._context.clock.wall_ms()
        headers = [(header, _bytes(value)) for header, value in body.headers]
        message = Message(_bytes(body.key), _bytes(body.value), headers, event_ms=body.event_ms, publish_ms=now_ms)
        try:
            payload = encode_messages([message])
        except (WireError, UnicodeEncodeError) as bad:
            raise BadRequestError(f"the message cannot be written: {bad}") from bad
        producer = await topic.produce(
            ProducerRequest(call.role, schema=await self._schema(name), address="HTTP", client_version="admin API")
        )
        try:
            later = body.deliver_at_ms is not None and body.deliver_at_ms > now_ms
            receipt = await producer.publish(
                Outgoing(
                    payload,
                    1,
                    BatchFormat.MESSAGES,
                    deliver_at_ms=body.deliver_at_ms if later else None,
                )
            )
        finally:
            await producer.close()
        return SentAnswer(str(name), receipt.offset, *receipt.position, receipt.held)

    async def _schema(self, name: TopicName) -> SchemaData | None:
        """The topic's latest, which whoever sends is trusted to have written by."""
        try:
            found = await self._context.schemas.get(name.base)
        except SchemaNotFoundError:
            return None
        return SchemaData(found.type, found.data, properties=found.properties)


def _visible(batch: Batch, reader: LogReader, first: int) -> Iterator[tuple[int, Message]]:
    """What consumers would see of it, from an offset on; one that stands for all stands at the first."""
    if batch.flags & BatchFlags.UNSEEN:
        return
    wanted = reader.visible(batch)
    for place, message in enumerate(messages_of(batch)):
        offset = batch.base_offset + place
        if offset >= first and (wanted is None or wanted >> place & 1):
            yield offset, message


def _shown(topic: Topic, batch: Batch, offset: int, message: Message) -> BrowsedMessage:
    value = message.value
    ledger, entry = topic.position_of(offset)
    return BrowsedMessage(
        offset,
        ledger,
        entry,
        _base64(message.key),
        _base64(None if value is None else value[:_SHOWN_BYTES]),
        0 if value is None else len(value),
        value is not None and len(value) > _SHOWN_BYTES,
        [(name, _base64(said)) for name, said in message.headers],
        message.publish_ms,
        message.event_ms,
        batch.append_ms,
        batch.format.name.lower(),
        _transaction(topic, batch, offset),
    )


def _transaction(topic: Topic, batch: Batch, offset: int) -> str | None:
    if not batch.flags & BatchFlags.TRANSACTIONAL or batch.stamp is None:
        return None
    for each in topic.aborted(offset, offset + 1):
        if each.producer_id == batch.stamp.producer_id and each.first_offset <= offset < each.last_offset:
            return "aborted"
    return "open" if offset >= topic.stable_offset else "committed"


def _base64(data: Buffer | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError) as bad:
        raise BadRequestError("keys, values and headers of a message are base64") from bad


def partition_of(key: bytes | None, count: int, now_ms: int) -> int:
    """As Pulsar's clients choose by a key (Java's hash of a string); without one, any."""
    if key is None:
        return now_ms % count
    number = 0
    text = key.decode("utf-8", "replace").encode("utf-16-be")
    for at in range(0, len(text), 2):
        number = (31 * number + (text[at] << 8 | text[at + 1])) & 0xFFFFFFFF
    return (number & 0x7FFFFFFF) % count


_MOST = 1_000
_FOUND_BASE = "/admin/weir/v1/found/persistent/{tenant}/{namespace}/{topic}"


class FoundAnswer(Struct):
    """The latest first."""

    messages: list[WaitingMessage]


class Found:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                _FOUND_BASE,
                "The latest messages of a key, by the topic's index of keys (policy `keyIndex`).",
                self._get,
                answer=FoundAnswer,
                query=(
                    Query("key", str, "the key, or one of the keys", ""),
                    Query("base64", bool, "whether `key` is base64", False),
                    Query("limit", Annotated[int, Meta(ge=1, le=_MOST)], "how many", 10),
                ),
                refusals=ABOUT_ONE_TOPIC,
                tag="messages",
            )
        ]

    async def _get(self, call: Call) -> FoundAnswer:
        name = topic_of(call.path)
        self._context.authoriser.check(call.role, Action.CONSUME, name)
        text = call.query["key"]
        try:
            key = base64.b64decode(text, validate=True) if call.query["base64"] else text.encode()
        except (binascii.Error, UnicodeEncodeError) as bad:
            raise BadRequestError(f"the key cannot be read: {bad}") from bad
        stored = await self._context.stored_one(name)
        return FoundAnswer(shown_messages(stored, await stored.find(key, call.query["limit"])))


_OFFSETS_BASE = "/admin/weir/v1/offsets/persistent/{tenant}/{namespace}/{topic}"
_OFFSETS_TAG = "offsets"


class OffsetsAnswer(Struct, rename="camel"):
    """`offset`: what was asked for, or the end; `message_id`: the same as Pulsar's clients say it."""

    start: int
    end: int
    offset: int
    message_id: str


class OffsetBody(Struct):
    offset: Natural


class Offsets:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                _OFFSETS_BASE,
                "The first and the next offset, and the one of a moment; with the message id of an offset.",
                self._get,
                answer=OffsetsAnswer,
                query=(
                    Query("offset", int, "its message id is told; what lies outside is brought inside"),
                    Query("time", Natural, "the first offset that was stored then or later (milliseconds)"),
                ),
                refusals=ABOUT_ONE_TOPIC,
                tag=_OFFSETS_TAG,
            ),
            Route(
                "POST",
                f"{_OFFSETS_BASE}/{{subscription}}",
                "Move a subscription: everything before the offset is acknowledged, nothing from it on.",
                self._move,
                body=OffsetBody,
                answer=OffsetsAnswer,
                refusals=ABOUT_ONE_TOPIC,
                tag=_OFFSETS_TAG,
            ),
        ]

    async def _get(self, call: Call) -> OffsetsAnswer:
        stored = await self._stored(call)
        wanted, moment_ms = call.query["offset"], call.query["time"]
        if moment_ms is not None:
            wanted = await stored.topic.offset_at(moment_ms)
        return _answer(stored, stored.topic.end_offset if wanted is None else wanted)

    async def _move(self, call: Call) -> OffsetsAnswer:
        stored = await self._stored(call)
        subscription = stored.subscription(subscription_of(call.path))
        await subscription.seek(call.body.offset)
        return _answer(stored, call.body.offset)

    async def _stored(self, call: Call) -> StoredTopic:
        name = topic_of(call.path)
        self._context.authoriser.check(call.role, Action.CONSUME, name)
        return await self._context.stored_one(name)


def _answer(stored: StoredTopic, wanted: int) -> OffsetsAnswer:
    topic = stored.topic
    offset = max(topic.start_offset, min(wanted, topic.end_offset))
    at = id_at(topic, offset)
    return OffsetsAnswer(topic.start_offset, topic.end_offset, offset, f"{at.ledgerId}:{at.entryId}")
