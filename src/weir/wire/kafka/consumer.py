"""What Kafka's consumers put into the bytes of JoinGroup and SyncGroup: a version, and a message of that version.

Versions only ever append fields. So a newer one than is known here is read as the newest known, and the rest of it
is left alone, as Kafka's own clients do.
"""

from struct import Struct
from typing import cast

from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.wire.kafka import codec
from weir.wire.kafka import messages as m
from weir.wire.kafka.schema import LAYOUTS

_VERSION = Struct(">h")
_SUBSCRIPTION = "ConsumerProtocolSubscription"
_ASSIGNMENT = "ConsumerProtocolAssignment"


def decode_subscription(data: Buffer) -> m.ConsumerProtocolSubscription:
    """The metadata of a member that speaks the protocol type `consumer`."""
    return cast(m.ConsumerProtocolSubscription, _decode(_SUBSCRIPTION, data))


def encode_subscription(version: int, subscription: m.ConsumerProtocolSubscription) -> bytes:
    return _encode(_SUBSCRIPTION, version, subscription)


def decode_assignment(data: Buffer) -> m.ConsumerProtocolAssignment:
    """What a leader of such a group gave to one member."""
    return cast(m.ConsumerProtocolAssignment, _decode(_ASSIGNMENT, data))


def encode_assignment(version: int, assignment: m.ConsumerProtocolAssignment) -> bytes:
    return _encode(_ASSIGNMENT, version, assignment)


def _decode(name: str, data: Buffer) -> m.Message:
    view = memoryview(data)
    if len(view) < _VERSION.size:
        raise WireError(f"{name} has no version")
    (version,) = _VERSION.unpack_from(view)
    return codec.decode_data(name, min(version, LAYOUTS[name].versions.high), view[_VERSION.size :])


def _encode(name: str, version: int, message: m.Message) -> bytes:
    body = codec.encode_data(name, version, message)
    return _VERSION.pack(version) + body
