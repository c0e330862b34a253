"""How a connection between brokers begins, once both ends are known: magic, versions, features, and who is meant.

The layout of these two frames holds for every version of the protocol. The asker names the broker that it means,
since addresses are reused: a broker must never do what was meant for another.
"""

from struct import Struct
from typing import NamedTuple

from weir.model.errors import UnknownVersionError, WireError
from weir.model.ids import Buffer
from weir.wire.bookie_layout import as_text, fields_before_rest, frame, kind_of
from weir.wire.peer.messages import Failed, FrameType, decode_failed

#: The one version that this build speaks.
VERSION = 1
#: Optional abilities, as bits; both sides use what both have. None so far.
FEATURES = 0
#: Until the hello is through, nobody may make this side buffer more.
MAX_HELLO_BYTES = 4096

_MAGIC = b"WPER"
_HELLO = Struct("<4sHHIHH")  # magic, oldest, newest, features, bytes of both ids; then asker and meant
_WELCOME = Struct("<4sHIIH")  # magic, version, features, max frame bytes, bytes of the broker's id; then the id


class Hello(NamedTuple):
    """The asker, who speaks versions `oldest` to `newest`, and the broker that it means."""

    asker: str
    meant: str
    oldest: int = VERSION
    newest: int = VERSION
    features: int = FEATURES


class Welcome(NamedTuple):
    """The other side says who it is, which version it chose, and the longest frame that it takes."""

    broker_id: str
    version: int
    features: int
    max_frame_bytes: int


def encode_hello(hello: Hello) -> bytes:
    asker, meant = hello.asker.encode(), hello.meant.encode()
    head = _HELLO.pack(_MAGIC, hello.oldest, hello.newest, hello.features, len(asker), len(meant))
    return frame(head + asker + meant)


def decode_hello(body: Buffer) -> Hello:
    (magic, oldest, newest, features, asker, meant), rest = fields_before_rest(body, _HELLO)
    _check_magic(magic)
    if len(rest) != asker + meant:
        raise WireError(f"ids of {asker} and {meant} bytes lie in {len(rest)} bytes")
    if not 1 <= oldest <= newest:
        raise WireError(f"a hello offers versions {oldest} to {newest}")
    return Hello(as_text(rest[:asker]), as_text(rest[asker:]), oldest, newest, features)


def encode_welcome(welcome: Welcome) -> bytes:
    name = welcome.broker_id.encode()
    head = _WELCOME.pack(_MAGIC, welcome.version, welcome.features, welcome.max_frame_bytes, len(name))
    return frame(head + name)


def decode_welcome(body: Buffer) -> Welcome | Failed:
    """The answer to a hello."""
    if kind_of(body) == FrameType.FAILED:
        return decode_failed(body)
    (magic, version, features, max_frame_bytes, length), rest = fields_before_rest(body, _WELCOME)
    _check_magic(magic)
    if len(rest) != length:
        raise WireError(f"a broker's id of {length} bytes lies in {len(rest)} bytes")
    return Welcome(as_text(rest), version, features, max_frame_bytes)


def choose_version(hello: Hello) -> int:
    """The version to speak with this asker, or UnknownVersionError."""
    if not hello.oldest <= VERSION <= hello.newest:
        raise UnknownVersionError(
            f"this broker speaks version {VERSION} of the protocol between brokers, "
            f"broker {hello.asker} {hello.oldest} to {hello.newest}",
            hint="upgrade the older of the two",
        )
    return VERSION


def _check_magic(magic: bytes) -> None:
    if magic != _MAGIC:
        raise WireError(f"a connection begins with {magic!r} instead of {_MAGIC!r}: not the brokers' protocol")
