"""Kafka's message bodies to values and back, for both roles; compiled at their first use.

Whatever the bytes, decoding answers a message or a WireError. Bytes behind the last known field are left alone, as
Kafka's own brokers do. Slices of `bytes` and `records` fields share the memory of what was given.

What Kafka's consumers put into the bytes of JoinGroup and SyncGroup: a version, and a message of that version.

Versions only ever append fields. So a newer one than is known here is read as the newest known, and the rest of it
is left alone, as Kafka's own clients do.
"""

from collections.abc import Callable
from functools import cache
from struct import Struct
from struct import error as struct_error
from typing import NoReturn, cast

from weir.model.errors import UnknownVersionError, WireError
from weir.model.ids import Buffer
from weir.wire.kafka import messages as m
from weir.wire.kafka.classes import Message
from weir.wire.kafka.codec_compiler import decoder, encoder
from weir.wire.kafka.schema.layout import Layout
from weir.wire.kafka.schema.table import APIS, LAYOUTS

#: What compiled codecs raise for bytes, or values, that do not fit; catching costs nothing where nothing is wrong.
_UNREADABLE = (struct_error, IndexError, UnicodeDecodeError)
_UNWRITABLE = (struct_error, UnicodeEncodeError, TypeError, AttributeError, OverflowError)


@cache
def response_has(key: int, version: int, name: str) -> bool:
    """Whether responses of this version have a field of that name at their top."""
    return any(field.name == name and version in field.versions for field in APIS[key].response.body.fields)


def decode_request(key: int, version: int, data: Buffer) -> Message:
    """The request whose bytes, behind its header, are `data`."""
    decode = _request_decoder(key, version)
    try:
        return decode(memoryview(data))
    except _UNREADABLE as error:
        _refuse("decoded", APIS[key].request, version, error)


def decode_response(key: int, version: int, data: Buffer) -> Message:
    """The response whose bytes, behind its header, are `data`."""
    decode = _response_decoder(key, version)
    try:
        return decode(memoryview(data))
    except _UNREADABLE as error:
        _refuse("decoded", APIS[key].response, version, error)


def encode_request(key: int, version: int, message: Message) -> list[Buffer]:
    """The body of a request, as buffers to write one after the other."""
    encode = _request_encoder(key, version)
    try:
        return encode(message)
    except _UNWRITABLE as error:
        _refuse("encoded", APIS[key].request, version, error)


def encode_response(key: int, version: int, message: Message) -> list[Buffer]:
    """The body of a response, as buffers to write one after the other."""
    encode = _response_encoder(key, version)
    try:
        return encode(message)
    except _UNWRITABLE as error:
        _refuse("encoded", APIS[key].response, version, error)


def decode_data(name: str, version: int, data: Buffer) -> Message:
    """A message that belongs to no API, by its name."""
    layout = LAYOUTS[name]
    try:
        return _decoder(layout.name, version)(memoryview(data))
    except _UNREADABLE as error:
        _refuse("decoded", layout, version, error)


def encode_data(name: str, version: int, message: Message) -> bytes:
    layout = LAYOUTS[name]
    try:
        return b"".join(_encoder(layout.name, version)(message))
    except _UNWRITABLE as error:
        _refuse("encoded", layout, version, error)


def _refuse(what: str, layout: Layout, version: int, error: Exception) -> NoReturn:
    raise WireError(f"{layout.name} v{version} cannot be {what}: {error}") from error


# --- compiled once -----------------------------------------------------------------------------------------------


def _checked(layout: Layout, version: int) -> Layout:
    if version not in layout.versions:
        raise UnknownVersionError(f"{layout.name} has no version {version} here")
    return layout


@cache
def _decoder(name: str, version: int) -> Callable[[memoryview], Message]:
    return decoder(_checked(LAYOUTS[name], version), version)


@cache
def _encoder(name: str, version: int) -> Callable[[Message], list[Buffer]]:
    return encoder(_checked(LAYOUTS[name], version), version)


def _layouts(key: int) -> tuple[Layout, Layout]:
    api = APIS.get(key)
    if api is None:
        raise UnknownVersionError(f"no API has the key {key} here")
    return api.request, api.response


@cache
def _request_decoder(key: int, version: int) -> Callable[[memoryview], Message]:
    return _decoder(_layouts(key)[0].name, version)


@cache
def _response_decoder(key: int, version: int) -> Callable[[memoryview], Message]:
    return _decoder(_layouts(key)[1].name, version)


@cache
def _request_encoder(key: int, version: int) -> Callable[[Message], list[Buffer]]:
    return _encoder(_layouts(key)[0].name, version)


@cache
def _response_encoder(key: int, version: int) -> Callable[[Message], list[Buffer]]:
    return _encoder(_layouts(key)[1].name, version)


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
    return decode_data(name, min(version, LAYOUTS[name].versions.high), view[_VERSION.size :])


def _encode(name: str, version: int, message: m.Message) -> bytes:
    body = encode_data(name, version, message)
    return _VERSION.pack(version) + body
