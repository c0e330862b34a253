"""Protobuf messages out of bytes, with nothing but WireError when that fails.

`api` holds the generated classes. The runtime parses without asking whether required fields are there, so that
is asked here; and it gives sub-messages out as views of their parent, so a parsed message is never reused.

Protobuf's variable-length integers, for the few commands that are built by hand.

Pulsar's binary protocol as bytes and values, for both roles: broker and client.

`frames` cuts a stream into commands, `message` seals and opens what rides with them, `commands` names them all,
`hot` builds the ones that are sent once per entry, `refusals` says no in the protocol's own way; `batch`,
`compression` and `ids` are about payloads. The messages themselves are generated: `proto.api`.
"""

from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]

from weir.model.errors import InvariantError, WireError
from weir.model.ids import Buffer
from weir.wire.pulsar import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from weir.wire.pulsar._protobuf import Message
else:
    from google.protobuf.message import Message

__all__ = ["Message", "api", "parse", "serialize"]

MAX_U64 = 2**64 - 1


def varint(value: int) -> bytes:
    """`value` in groups of seven bits, the low ones first. A negative one is sent as its 64-bit complement."""
    if 0 <= value < 0x80:
        return value.to_bytes(1, "little")
    if 0 <= value < 0x4000:
        return (value & 0x7F | 0x80 | value >> 7 << 8).to_bytes(2, "little")
    if 0 <= value < 0x200000:
        return (value & 0x7F | 0x8080 | (value & 0x3F80) << 1 | value >> 14 << 16).to_bytes(3, "little")
    value &= MAX_U64
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: Buffer) -> M:
    """The message in `data`, with all that it requires."""
    try:
        message = kind.FromString(data)
    except DecodeError as bad:
        raise WireError(f"{kind.__name__} cannot be parsed: {bad}") from None
    if not message.IsInitialized():
        raise WireError(f"{kind.__name__} lacks a field that it requires")
    return message


def serialize(message: Message) -> bytes:
    """The message's bytes; a message that lacks a required field is a bug of whoever built it."""
    try:
        return message.SerializeToString()
    except EncodeError as bad:
        raise InvariantError(f"an incomplete Pulsar message: {bad}") from None
