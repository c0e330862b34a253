"""Requests and answers between brokers as bytes: frozen dataclasses, checked field by field as they are read.

A value is a MessagePack map by the names of its fields. A field that this side does not know is left out, and one
that did not come has its default; so brokers of two versions understand each other where new fields have defaults.
Fields may be texts, numbers, bytes, flags, enums, tuples, mappings with texts or numbers as keys, other such
dataclasses (names of topics among them), and None where the type allows it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import isfinite
from typing import Any, Generic, TypeVar

import msgspec

from weir.model.bundles import BundleName
from weir.model.errors import InvalidNameError, WireError
from weir.model.ids import Buffer
from weir.model.topics import NamespaceName, TopicName

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
