"""What a queue says about a message that it delivers, in its headers: how often it came, and where it lies."""

from dataclasses import replace

from weir.model.queues import QueueKind
from weir.wire.amqp.outgoing import Outgoing, outgoing
from weir.wire.amqp.properties import decode_properties, encode_properties
from weir.wire.amqp.tables import NO_FIELDS, Field

DELIVERY_COUNT = "x-delivery-count"
STREAM_OFFSET = "x-stream-offset"
#: Class, weight and size of the body come before the properties in a header frame.
_HEAD_BYTES = 12


def marked(message: Outgoing, kind: QueueKind, offset: int, redelivered: int) -> Outgoing:
    """A stream says the offset of each message, a quorum queue how often it was delivered before."""
    if kind is QueueKind.STREAM:
        return _with(message, STREAM_OFFSET, Field("l", offset))
    if kind is QueueKind.QUORUM:
        return _with(message, DELIVERY_COUNT, Field("l", redelivered))
    return message


def _with(message: Outgoing, name: str, field: Field) -> Outgoing:
    properties = decode_properties(message.header[_HEAD_BYTES:])
    headers = (properties.headers or NO_FIELDS).replacing(name, field)
    return outgoing(message.envelope, encode_properties(replace(properties, headers=headers)), message.body)
