"""How a connection to a bookie begins: magic, version and features, and who is meant.

The layout of these two frames holds for every version of the protocol. The client names the bookie that it
means, since addresses are reused: a bookie must never store what was meant for another.
"""

from struct import Struct
from typing import NamedTuple

from weir.model.errors import UnknownVersionError, WireError
from weir.model.ids import BookieId, Buffer
from weir.wire.bookie import Failed, FrameType, decode_failed
from weir.wire.bookie_layout import as_text, fields_before_rest, frame, kind_of

#: The one version that this build speaks.
VERSION = 1
#: Optional abilities, as bits; both sides use what both have. None so far.
FEATURES = 0
#: Until the hello is through, nobody may make this side buffer more.
MAX_HELLO_BYTES = 4096

#: The kind of link, in proofs (`wire.proof`), which come before the hello where the cluster has a secret.
PURPOSE = "bookie"

_MAGIC = b"WBKE"
_HELLO = Struct("<4sHHIB")  # magic, oldest, newest, features, bytes of the bookie id; then the id
_WELCOME = Struct("<4sHIIB")  # magic, version, features, max frame bytes, bytes of the bookie id; then the id


class Hello(NamedTuple):
    """The client speaks versions `oldest` to `newest` and means this bookie (empty: whoever answers)."""

    bookie_id: BookieId
    oldest: int = VERSION
    newest: int = VERSION
    features: int = FEATURES


class Welcome(NamedTuple):
    """The server says who it is, which version it chose, and the longest frame that it takes."""

    bookie_id: BookieId
    version: int
    features: int
    max_frame_bytes: int


def encode_hello(hello: Hello) -> bytes:
    name = hello.bookie_id.encode()
    return frame(_HELLO.pack(_MAGIC, hello.oldest, hello.newest, hello.features, len(name)) + name)


def decode_hello(body: Buffer) -> Hello:
    (magic, oldest, newest, features, length), rest = fields_before_rest(body, _HELLO)
    name = _bookie_id(magic, rest, length)
    if not 1 <= oldest <= newest:
        raise WireError(f"a hello offers versions {oldest} to {newest}")
    return Hello(name, oldest, newest, features)


def encode_welcome(welcome: Welcome) -> bytes:
    name = welcome.bookie_id.encode()
    head = _WELCOME.pack(_MAGIC, welcome.version, welcome.features, welcome.max_frame_bytes, len(name))
    return frame(head + name)


def decode_welcome(body: Buffer) -> Welcome | Failed:
    """The server's answer to a hello."""
    if kind_of(body) == FrameType.FAILED:
        return decode_failed(body)
    (magic, version, features, max_frame_bytes, length), rest = fields_before_rest(body, _WELCOME)
    return Welcome(_bookie_id(magic, rest, length), version, features, max_frame_bytes)


def choose_version(hello: Hello) -> int:
    """The version to speak with this client, or UnknownVersionError."""
    if not hello.oldest <= VERSION <= hello.newest:
        raise UnknownVersionError(
            f"this bookie speaks protocol version {VERSION}, the client {hello.oldest} to {hello.newest}",
            hint="upgrade the older of the two",
        )
    return VERSION


def _bookie_id(magic: bytes, rest: memoryview, length: int) -> BookieId:
    if magic != _MAGIC:
        raise WireError(f"a connection begins with {magic!r} instead of {_MAGIC!r}: not the bookie protocol")
    if len(rest) != length:
        raise WireError(f"a bookie id of {length} bytes lies in {len(rest)} bytes")
    return BookieId(as_text(rest))
