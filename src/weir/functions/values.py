"""Keys and values by the schemas of their topics: what a function gets for bytes, and bytes for what it gives."""

import math
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from weir.functions.api import ESCAPED
from weir.functions.codecs import Encode, decoder, definition_of, encoder, plain
from weir.functions.protocol import Headers, Item, SchemaVersion
from weir.model.errors import FunctionError, WireError
from weir.wire.key_values import KIND as KEY_VALUE
from weir.wire.key_values import PartSchema, joined, split, split_schema
from weir.wire.pulsar.translation import SCHEMA_VERSION

#: Key and value as they are stored, and as the function has them.
Raw = tuple[bytes | None, bytes | None]
_Read = Callable[[bytes | None, bytes | None], tuple[Any, Any]]
_Write = Callable[[Any, Any], Raw]

_AS_THEY_ARE = ("BYTES", "NONE")
_ASK_AGAIN_S = 10.0
_ASKED = 1_000


@dataclass(frozen=True, slots=True)
class _Both:
    """A version of a KEY_VALUE schema."""

    key: SchemaVersion
    value: SchemaVersion
    inline: bool


class Values:
    """The messages of one topic, by the versions of its schema; of one without a schema values are bytes.

    Keys are text, unless a KEY_VALUE schema says what they are.
    """

    def __init__(self, topic: str, versions: Sequence[SchemaVersion] = ()) -> None:
        self.topic = topic
        self._versions = {one.version: one for one in versions}
        self._latest = versions[-1] if versions else None
        self._readers: dict[int, _Read] = {}
        self._write: _Write | None = None
        #: Whether keys lie in the values.
        self.inline = self._latest is not None and self._latest.kind == KEY_VALUE and _both(self._latest).inline

    @property
    def typed(self) -> bool:
        return self._latest is not None

    def decode(self, key: bytes | None, data: bytes | None, headers: Headers) -> tuple[Any, Any]:
        """Key and value; FunctionError for what does not fit."""
        if self._latest is None:
            return _text(key), data
        version = self._latest.version
        for name, value in headers:
            if name == SCHEMA_VERSION and value is not None and value.isdigit():
                version = int(value)
        try:
            read = self._readers.get(version)
            if read is None:
                read = self._readers[version] = _reader(self._versions.get(version, self._latest), self._latest)
            return read(key, data)
        except Exception as bad:
            raise FunctionError(
                f"the value does not fit the {self._latest.kind} schema of {self.topic}: {bad}"
            ) from bad

    def encode(self, key: Any, value: Any) -> Raw:
        """FunctionError for what does not fit."""
        if self._latest is None:
            return _key(key), plain(value)
        try:
            if self._write is None:
                self._write = _writer(self._latest)
            return self._write(key, value)
        except Exception as bad:
            raise FunctionError(
                f"what is returned does not fit the {self._latest.kind} schema of {self.topic}: {bad}"
            ) from bad

    def own_key(self, key: bytes | None, data: bytes | None) -> bytes:
        """By which there is state, and work is dealt: the message's, or that which lies in its value."""
        if self.inline and data is not None:
            with suppress(WireError):  # what is neither fails when it is decoded
                key = split(data)[0]
        return key or b""

    def unknown(self, headers: Headers) -> int | None:
        """The version that a message was written by, if it says one that is not known, and that matters."""
        if self._latest is not None and self._latest.kind not in ("AVRO", KEY_VALUE):
            return None
        for name, value in headers:
            if (
                name == SCHEMA_VERSION
                and value is not None
                and value.isdigit()
                and int(value) not in self._versions
            ):
                return int(value)
        return None


class LaterVersions:
    """Versions that were registered since the schemas were asked for. Headers are the producer's and may name what
    there is not: that is not asked for again with every message."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._asked_s: dict[tuple[str, int], float] = {}

    def wanted(self, items: Iterable[Item], values: Mapping[str, Values]) -> bool:
        """Whether the registry has to be asked before these are read."""
        found = {
            (item.topic, version)
            for item in items
            if (mine := values.get(item.topic)) is not None and (version := mine.unknown(item.headers)) is not None
        }
        now_s = self._now_s()
        new = [one for one in found if now_s - self._asked_s.get(one, -math.inf) > _ASK_AGAIN_S]
        if len(self._asked_s) > _ASKED:
            self._asked_s.clear()
        self._asked_s |= dict.fromkeys(new, now_s)
        return bool(new)


def all_values(schemas: Mapping[str, Sequence[SchemaVersion]]) -> dict[str, Values]:
    return {topic: Values(topic, versions) for topic, versions in schemas.items()}


def _both(schema: SchemaVersion) -> _Both:
    found = split_schema(definition_of(schema), schema.properties)
    return _Both(_version(schema, found.key), _version(schema, found.value), found.inline)


def _version(schema: SchemaVersion, part: PartSchema) -> SchemaVersion:
    """As the REST tells it of a topic that has this schema alone."""
    native = part.kind == "PROTOBUF_NATIVE"
    text = b64encode(part.definition).decode() if native else part.definition.decode()
    return SchemaVersion(schema.version, part.kind, text, dict(part.properties))


def _reader(writer: SchemaVersion, latest: SchemaVersion) -> _Read:
    if latest.kind != KEY_VALUE:
        of_value = decoder(writer, latest)
        return lambda key, data: (_text(key), None if data is None else of_value(data))
    new = _both(latest)
    old = _both(writer) if writer.kind == KEY_VALUE else new
    of_key, of_value = decoder(old.key, new.key), decoder(old.value, new.value)

    def read(key: bytes | None, data: bytes | None) -> tuple[Any, Any]:
        if old.inline and data is not None:
            key, data = split(data)
        return None if key is None else of_key(key), None if data is None else of_value(data)

    return read


def _writer(latest: SchemaVersion) -> _Write:
    if latest.kind != KEY_VALUE:
        of_value = encoder(latest)
        return lambda key, value: (_key(key), _raw(value, of_value))
    both = _both(latest)
    of_key, of_value = encoder(both.key), encoder(both.value)

    def write(key: Any, value: Any) -> Raw:
        raw_key = _raw(key, of_key)
        if both.inline and isinstance(value, bytes) and both.value.kind not in _AS_THEY_ARE:
            return raw_key, value  # the whole message, as it is
        data = _raw(value, of_value)
        # A key that lies in the value is the message's too, so that partitions keep the order of a key.
        return raw_key, joined(raw_key, data) if both.inline else data

    return write


def _raw(value: Any, encode: Encode) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else encode(value)


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode(errors=ESCAPED)


def _key(key: Any) -> bytes | None:
    return key.encode(errors=ESCAPED) if isinstance(key, str) else plain(key)
