"""Requests and answers between brokers as bytes: frozen dataclasses, checked field by field as they are read.

A value is a MessagePack map by the names of its fields. A field that this side does not know is left out, and one
that did not come has its default; so brokers of two versions understand each other where new fields have defaults.
Fields may be texts, numbers, bytes, flags, enums, tuples, mappings with texts or numbers as keys, other such
dataclasses (names of topics among them), and None where the type allows it.

How a connection between brokers begins, once both ends are known: magic, versions, features, and who is meant.

The layout of these two frames holds for every version of the protocol. The asker names the broker that it means,
since addresses are reused: a broker must never do what was meant for another.

Errors between brokers: by the name of their class, with what they say and the few things that some carry.

Frames between brokers, for both sides: a request, its answer, its failure.

    length u32 | crc32c u32 | kind u8 | number of the request u64 | fields of that kind | a value (`values`)

The number is the asker's own. A failure of request 0 is the reason why the connection ends.

What brokers say to each other: framed calls, their values and errors, and how a connection begins.

After proof (`wire.proof`) and hello, requests flow one way and answers the other, tied by the request's number
and answered in any order. docs/internals/wire.md has the layouts. To add a call: a request and an answer as frozen
dataclasses in a module of their subject, and a line in that module's table, which `calls` puts together.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import IntEnum
from math import isfinite
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from weir.model import errors
from weir.model.cluster import BundleName
from weir.model.errors import (
    EntryLostError,
    InvalidNameError,
    MemberIdRequiredError,
    NotOwnerError,
    PeerFailedError,
    UnknownVersionError,
    WeirError,
    WireError,
)
from weir.model.ids import Buffer
from weir.model.topics import NamespaceName, TopicName
from weir.wire.entry import MAX_PAYLOAD_BYTES
from weir.wire.node.frames import as_text, fields_before_rest, frame, kind_of

A = TypeVar("A")


class PeerRequest(Generic[A]):
    """A request that is answered with an `A`: the base of every request's dataclass."""

    __slots__ = ()


def _plain(value: object) -> object:
    """What the encoder does not know by itself: a mapping of any kind goes as a dict."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} cannot go to another broker")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)


def encode_value(value: object) -> bytes:
    """A value's bytes; a TypeError for what cannot be one is a bug of the caller's."""
    return _encoder.encode(value)


class ValueDecoder(Generic[A]):
    """Reads values of one type; anything else is a WireError."""

    def __init__(self, kind: type[A]) -> None:
        self._kind = kind
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kind)

    def decode(self, data: Buffer) -> A:
        try:
            value: A = self._decoder.decode(data)
            _check(value)
        except (ValueError, TypeError, OverflowError, RecursionError, InvalidNameError) as bad:
            raise WireError(f"a {self._kind.__name__} is malformed: {bad}") from bad
        return value


@dataclass(frozen=True, slots=True)
class ValueCodec(Generic[A]):
    """How values of one type are written and read, where the way of this module is not the one."""

    encode: Callable[[A], bytes]
    decode: Callable[[bytes], A]


@dataclass(frozen=True, slots=True)
class Call(Generic[A]):
    """One thing that a broker can ask of another. Its number is for ever; its name is what metrics say."""

    number: int
    name: str
    request: type[PeerRequest[A]]
    answer: type[A]
    #: For answers that have a codec of their own.
    answer_codec: ValueCodec[A] | None = None


def _check(value: object) -> None:
    """What came could have been written here: names are checked where they are parsed only, numbers nowhere."""
    if isinstance(value, TopicName):
        if TopicName.parse(str(value)) != value:
            raise InvalidNameError("this is no topic")
    elif isinstance(value, BundleName):
        if BundleName.parse(str(value)) != value:
            raise InvalidNameError("this is no bundle")
    elif isinstance(value, NamespaceName):
        NamespaceName.parse(str(value))
    elif isinstance(value, float):
        if not isfinite(value):
            raise ValueError("a number is none")
    else:
        for part in _parts(value):
            _check(part)


def _parts(value: object) -> Iterator[object]:
    if isinstance(value, tuple | list):
        yield from value
    elif isinstance(value, Mapping):
        yield from value.values()
    elif is_dataclass(value):
        for part in fields(value):
            yield getattr(value, part.name)


#: The largest frame: a message to or from a queue of another broker, and room for the rest.
MAX_FRAME_BYTES = MAX_PAYLOAD_BYTES + 1024 * 1024
#: What a frame takes besides the value in it, prefix and all; never more.
OVERHEAD_BYTES = 32


class FrameType(IntEnum):
    """What a frame is."""

    REQUEST = 1
    ANSWER = 2
    FAILED = 3


_REQUEST = Struct("<BQHI")  # kind, request, call, timeout ms; then the request's value
_ANSWER = Struct("<BQ")  # kind, request; then the answer's value
_FAILED = Struct("<BQ")  # kind, request; then the failure's value


class Request(NamedTuple):
    """Do this; after `timeout_ms` nobody waits for the answer any more."""

    request_id: int
    call: int
    timeout_ms: int
    value: memoryview


class Answer(NamedTuple):
    """What came of a request; which call it was of, the asker knows."""

    request_id: int
    value: memoryview


class Failed(NamedTuple):
    """Why a request came to nothing; `errors` knows what the value says."""

    request_id: int
    value: memoryview


Response: TypeAlias = Answer | Failed


def encode_request(request_id: int, call: int, timeout_ms: int, value: bytes) -> bytes:
    return frame(_REQUEST.pack(FrameType.REQUEST, request_id, call, timeout_ms) + value)


def decode_request(body: Buffer) -> Request:
    """The request in a frame's body; its value is a slice of it."""
    if kind_of(body) != FrameType.REQUEST:
        raise WireError(f"a request of unknown kind {kind_of(body)}")
    (_, request_id, call, timeout_ms), value = fields_before_rest(body, _REQUEST)
    if request_id == 0:
        raise WireError("a request has the number 0")
    return Request(request_id, call, timeout_ms, value)


def encode_answer(request_id: int, value: bytes) -> bytes:
    return frame(_ANSWER.pack(FrameType.ANSWER, request_id) + value)


def encode_failed(request_id: int, value: bytes) -> bytes:
    return frame(_FAILED.pack(FrameType.FAILED, request_id) + value)


def decode_response(body: Buffer) -> Response:
    """The answer or failure in a frame's body; its value is a slice of it."""
    kind = kind_of(body)
    if kind == FrameType.ANSWER:
        (_, request_id), value = fields_before_rest(body, _ANSWER)
        return Answer(request_id, value)
    if kind == FrameType.FAILED:
        return decode_failed(body)
    raise WireError(f"an answer of unknown kind {kind}")


def decode_failed(body: Buffer) -> Failed:
    """A failure, which may also answer a hello."""
    (_, request_id), value = fields_before_rest(body, _FAILED)
    return Failed(request_id, value)


#: No text of a failure may be longer, in characters; what is longer is cut.
MAX_TEXT_CHARS = 1024
_MAX_LISTENERS = 64

#: Every class that can cross, by its name.
_CLASSES: dict[str, type[WeirError]] = {
    name: found for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, WeirError)
}


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way; the fields with defaults belong to the classes that have them."""

    error: str
    what: str
    hint: str = ""
    listeners: Mapping[str, str] = field(default_factory=dict)
    member_id: str = ""
    ledger_id: int = -1
    entry_id: int = -1


_FAILURE = ValueDecoder(Failure)


def failure_of(error: BaseException) -> Failure:
    """What another broker is told. A class that it cannot know goes as its nearest ancestor; what is no WeirError
    says nothing of this broker's insides."""
    if not isinstance(error, WeirError):
        return Failure(PeerFailedError.__name__, "the other broker failed inside", "see its log")
    name = next(cls.__name__ for cls in type(error).__mro__ if _CLASSES.get(cls.__name__) is cls)
    said = Failure(name, _cut(error.what), _cut(error.hint))
    if isinstance(error, NotOwnerError):
        listeners = {_cut(key): _cut(value) for key, value in list(error.listeners.items())[:_MAX_LISTENERS]}
        return Failure(said.error, said.what, said.hint, listeners)
    if isinstance(error, MemberIdRequiredError):
        return Failure(said.error, said.what, said.hint, member_id=error.member_id)
    if isinstance(error, EntryLostError):
        return Failure(said.error, said.what, said.hint, ledger_id=error.ledger_id, entry_id=error.entry_id)
    return said


def error_of(failure: Failure) -> WeirError:
    """The error again; PeerFailedError for a class that this Weir does not have."""
    kind, what, hint = _CLASSES.get(failure.error), failure.what, failure.hint
    if kind is None:
        return PeerFailedError(f"{failure.error}: {what}", hint=hint)
    if issubclass(kind, NotOwnerError):
        return kind(what, hint=hint, listeners=dict(failure.listeners))
    if issubclass(kind, MemberIdRequiredError):
        return kind(what, hint=hint, member_id=failure.member_id)
    if issubclass(kind, EntryLostError):
        return kind(what, hint=hint, ledger_id=failure.ledger_id, entry_id=failure.entry_id)
    return kind(what, hint=hint)


def encode_failure(error: BaseException) -> bytes:
    return encode_value(failure_of(error))


def decode_failure(data: Buffer) -> WeirError:
    return error_of(_FAILURE.decode(data))


def _cut(text: str) -> str:
    return text[:MAX_TEXT_CHARS].encode(errors="replace").decode()


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
