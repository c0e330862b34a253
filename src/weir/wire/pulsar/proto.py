"""Protobuf messages out of bytes, with nothing but WireError when that fails.

`api` holds the generated classes. The runtime parses without asking whether required fields are there, so that
is asked here; and it gives sub-messages out as views of their parent, so a parsed message is never reused.
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
