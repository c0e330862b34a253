"""How a connection to a served metadata store begins, once both ends are known (`wire.proof`): versions, and which
instance of the store it is. The layout of these two frames holds for every version."""

from struct import Struct
from typing import NamedTuple

from weir.model.errors import UnknownVersionError, WireError
from weir.model.ids import Buffer
from weir.wire.bookie_layout import fixed_fields, frame, kind_of
from weir.wire.error_codes import Failed
from weir.wire.meta.kinds import FrameType
from weir.wire.meta.responses import decode_failed

#: The one version that this build speaks.
VERSION = 1
#: Until the hello is through, nobody may make this side buffer more.
MAX_HELLO_BYTES = 4096
#: The kind of link, in proofs.
PURPOSE = "metadata"

_MAGIC = b"WMTA"
_HELLO = Struct("<B4sHH")  # kind, magic, oldest, newest
_WELCOME = Struct("<B4sHQ")  # kind, magic, version, instance


class Hello(NamedTuple):
    """The client speaks versions `oldest` to `newest`."""

    oldest: int = VERSION
    newest: int = VERSION


class Welcome(NamedTuple):
    """`instance` is the store's since it was opened: leases of another instance are gone."""

    instance: int
    version: int = VERSION


def encode_hello(hello: Hello) -> bytes:
    return frame(_HELLO.pack(FrameType.HELLO, _MAGIC, hello.oldest, hello.newest))


def decode_hello(body: Buffer) -> Hello:
    kind, magic, oldest, newest = fixed_fields(body, _HELLO)
    _check(kind, FrameType.HELLO, magic)
    if not 1 <= oldest <= newest:
        raise WireError(f"a hello offers versions {oldest} to {newest}")
    return Hello(oldest, newest)


def encode_welcome(welcome: Welcome) -> bytes:
    return frame(_WELCOME.pack(FrameType.WELCOME, _MAGIC, welcome.version, welcome.instance))


def decode_welcome(body: Buffer) -> Welcome | Failed:
    """The server's answer to a hello."""
    if kind_of(body) == FrameType.FAILED:
        return decode_failed(body)
    kind, magic, version, instance = fixed_fields(body, _WELCOME)
    _check(kind, FrameType.WELCOME, magic)
    return Welcome(instance, version)


def choose_version(hello: Hello) -> int:
    """The version to speak with this client, or UnknownVersionError."""
    if not hello.oldest <= VERSION <= hello.newest:
        raise UnknownVersionError(
            f"this metadata store speaks version {VERSION}, the client {hello.oldest} to {hello.newest}",
            hint="upgrade the older of the two",
        )
    return VERSION


def _check(kind: int, expected: FrameType, magic: bytes) -> None:
    if kind != expected or magic != _MAGIC:
        raise WireError(f"kind {kind} with {magic!r} is no {expected.name.lower()} of the metadata protocol")
