"""Kafka's message bodies to values and back, for both roles; compiled at their first use.

Whatever the bytes, decoding answers a message or a WireError. Bytes behind the last known field are left alone, as
Kafka's own brokers do. Slices of `bytes` and `records` fields share the memory of what was given.
"""

from collections.abc import Callable
from functools import cache
from struct import error as struct_error
from typing import NoReturn

from weir.model.errors import UnknownVersionError, WireError
from weir.model.ids import Buffer
from weir.wire.kafka.classes import Message
from weir.wire.kafka.decoding import decoder
from weir.wire.kafka.encoding import encoder
from weir.wire.kafka.schema import APIS, LAYOUTS
from weir.wire.kafka.schema.form import Layout

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
