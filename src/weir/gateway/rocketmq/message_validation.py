"""Validation of messages with RocketMQ's codes, limits and order of checks; message types that topics accept."""

from collections.abc import Sequence
from typing import Any

from weir.gateway.rocketmq.errors import Refused
from weir.gateway.rocketmq.settings import SessionLimits
from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.model.registry import TopicRecord
from weir.model.subscriptions import MESSAGE_TYPES, TYPES_PROPERTY, types_in
from weir.wire.http2.grpc import TooLong, gunzip
from weir.wire.rocketmq import rocketmq_pb2 as api
from weir.wire.rocketmq.message import SHARDING_KEY
from weir.wire.rocketmq.proto import ms_of

_C, _T = api.Code, api.MessageType
#: Message groups must be shorter than this.
MAX_GROUP_BYTES = 64
MAX_PROPERTIES = 128
MAX_PROPERTIES_BYTES = 16 * 1024
_MAX_LITE_CHARACTERS = 64
_MAX_RECOVERY_MS = 3_600_000
_CONTROL = {chr(code) for code in range(32)} | {"\x7f"}
#: Names of RocketMQ's own message properties.
_RESERVED = frozenset(
    (
        "TRACE_ON", "MSG_REGION", "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID",
        "TRAN_MSG", "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG",
        "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME", "UNIQ_KEY", "EXTEND_UNIQ_INFO", "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "TRAN_PREPARED_QUEUE_OFFSET", "DUP_INFO",
        "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER",
        "MSG_TYPE", "INNER_MULTI_QUEUE_OFFSET", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL",
        "__BORNHOST", "BORN_TIMESTAMP",
    )
)  # fmt: skip


def check_message(message: Any, limits: SessionLimits) -> None:
    said = message.system_properties
    if len(message.body) > limits.max_body_bytes:
        raise Refused(_C.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {limits.max_body_bytes}")
    if not message.body:
        raise Refused(_C.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if not said.message_id:
        raise Refused(_C.ILLEGAL_MESSAGE_ID, "message id cannot be null or empty")
    if said.tag:
        _check_tag(said.tag)
    for key in said.keys:
        if not key.strip() or _has_control(key):
            raise Refused(_C.ILLEGAL_MESSAGE_KEY, "key cannot be blank or contain control characters")
    if said.message_group:
        _check_group(said.message_group)
    _check_properties(message)
    _check_type(said)


def _check_tag(tag: str) -> None:
    if not tag.strip():
        raise Refused(_C.ILLEGAL_MESSAGE_TAG, "tag cannot be the char sequence of whitespace")
    if "|" in tag:
        raise Refused(_C.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
    if _has_control(tag):
        raise Refused(_C.ILLEGAL_MESSAGE_TAG, "tag cannot contain control character")


def _check_group(group: str) -> None:
    if not group.strip():
        raise Refused(_C.ILLEGAL_MESSAGE_GROUP, "message group cannot be the char sequence of whitespace")
    if len(group.encode()) >= MAX_GROUP_BYTES:
        raise Refused(_C.ILLEGAL_MESSAGE_GROUP, f"message group exceed the max size {MAX_GROUP_BYTES}")
    if _has_control(group):
        raise Refused(_C.ILLEGAL_MESSAGE_GROUP, "message group cannot contain control character")


def _check_properties(message: Any) -> None:
    """Tag and keys count as properties, as in RocketMQ."""
    properties, said = message.user_properties, message.system_properties
    if len(properties) > MAX_PROPERTIES:
        raise Refused(_C.MESSAGE_PROPERTIES_TOO_LARGE, f"too many user properties, max is {MAX_PROPERTIES}")
    size = sum(len(text.encode()) for text in (said.tag, *said.keys))
    for name, text in properties.items():
        if not name.strip() or name in _RESERVED or _has_control(name):
            raise Refused(_C.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name[:80]}")
        if _has_control(text):
            raise Refused(_C.ILLEGAL_MESSAGE_PROPERTY_KEY, "property value contains control character")
        size += len(name.encode()) + len(text.encode())
    if SHARDING_KEY in properties and not said.message_group:
        raise Refused(
            _C.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, f"{SHARDING_KEY} is reserved: set the message group instead"
        )
    if size > MAX_PROPERTIES_BYTES:
        raise Refused(
            _C.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max={MAX_PROPERTIES_BYTES}",
        )


def _check_type(said: Any) -> None:
    kind = said.message_type
    delayed = said.HasField("delivery_timestamp")
    told = {
        _T.FIFO: bool(said.message_group),
        _T.DELAY: delayed,
        _T.LITE: bool(said.lite_topic),
        _T.PRIORITY: said.HasField("priority"),
    }
    if kind in told and not told[kind]:
        raise Refused(_C.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "the message lacks the property of its message type")
    if any(is_told for other, is_told in told.items() if other != kind):
        raise Refused(_C.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "the message has a property of another message type")
    if kind not in (_T.NORMAL, _T.FIFO, _T.DELAY, _T.TRANSACTION, _T.LITE, _T.PRIORITY):
        raise Refused(_C.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "message type is not known")
    if delayed and ms_of(said.delivery_timestamp) <= 0:
        raise Refused(_C.ILLEGAL_DELIVERY_TIME, "the delivery timestamp is illegal")
    if kind == _T.TRANSACTION and said.HasField("orphaned_transaction_recovery_duration"):
        recovery_ms = ms_of(said.orphaned_transaction_recovery_duration)
        if not 0 < recovery_ms <= _MAX_RECOVERY_MS:
            raise Refused(_C.BAD_REQUEST, "the orphaned transaction recovery duration is out of its bounds")
    if kind == _T.PRIORITY and said.priority < 0:
        raise Refused(_C.BAD_REQUEST, "priority cannot be negative")
    if said.lite_topic:
        check_lite_topic(said.lite_topic)


def check_lite_topic(name: str) -> None:
    if not name.strip() or len(name) > _MAX_LITE_CHARACTERS or _has_control(name):
        raise Refused(
            _C.ILLEGAL_LITE_TOPIC,
            f"a lite topic must have 1 to {_MAX_LITE_CHARACTERS} characters and no control characters",
        )


def body_of(message: Any, limits: SessionLimits) -> Buffer:
    """The message body, decompressed because other protocols read it, too."""
    said = message.system_properties
    body: bytes = message.body
    if said.body_encoding != api.Encoding.GZIP:
        return body
    try:
        return gunzip(body, limits.max_body_bytes)
    except TooLong:
        raise Refused(
            _C.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {limits.max_body_bytes}"
        ) from None
    except WireError as bad:
        raise Refused(_C.MESSAGE_CORRUPTED, bad.what) from None


def _has_control(text: str) -> bool:
    return not _CONTROL.isdisjoint(text)


_NUMBERS: dict[str, int] = {name: api.MessageType.Value(name.upper()) for name in MESSAGE_TYPES}
#: Types that most clients do not know yet; such clients fail if a route contains them.
NEW_TYPES = (_NUMBERS["lite"], _NUMBERS["priority"])
ALL = tuple(_NUMBERS.values())


def accepted_types(topic: TopicRecord | None) -> Sequence[int]:
    """Message types that a topic accepts; the object `ALL` if the topic has no such property."""
    if topic is None or TYPES_PROPERTY not in topic.properties:
        return ALL
    return [_NUMBERS[name] for name in types_in(topic.properties)]


def name_of(kind: int) -> str:
    return next((name.upper() for name, number in _NUMBERS.items() if number == kind), str(kind))
