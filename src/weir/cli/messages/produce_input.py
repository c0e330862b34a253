"""What `weir produce` reads: arguments, lines, JSON or whole files, each as messages to send."""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

from weir.client.messages import Outgoing
from weir.model.errors import ConfigError

_READ_BYTES = 256 * 1024


class InputFormat(Enum):
    """What standard input, or a file, holds."""

    LINES = "lines"
    JSON = "json"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Reading:
    """How messages are made of what is read. `like`: what all of them have in common."""

    like: Outgoing
    format: InputFormat = InputFormat.LINES
    delimiter: bytes = b"\n"
    #: Between a key and its message; None: there are no keys.
    key_separator: bytes | None = None
    #: An empty message has no value: it removes its key.
    empty_is_null: bool = False

    def message(self, data: bytes) -> Outgoing:
        """ConfigError for what cannot be one."""
        if self.format is InputFormat.JSON:
            return self._from_json(data)
        key, payload = self.like.key, data
        if self.key_separator is not None:
            before, found, after = data.partition(self.key_separator)
            if not found:
                raise ConfigError(
                    f"{data[:80]!r} has no key: {self.key_separator!r} is not in it", hint="check --key-separator"
                )
            key, payload = _key(before), after
        return replace(self.like, payload=payload, key=key, null=self.empty_is_null and not payload)

    def _from_json(self, data: bytes) -> Outgoing:
        """As `weir consume --json` prints them."""
        try:
            found: Any = json.loads(data)
            payload = _field(found, "payload")
            if payload is None and "payload" not in found:
                raise ValueError("there is no payload")
            key = _field(found, "key")
            # `properties` is the name of earlier releases.
            headers = {**(found.get("properties") or {}), **(found.get("headers") or {})}
            properties = {str(name): str(value) for name, value in headers.items()}
            return replace(
                self.like,
                payload=payload or b"",
                key=self.like.key if key is None else _key(key),
                properties={**self.like.properties, **properties},
                event_ms=int(found.get("event_ms") or 0),
                null=payload is None or bool(found.get("null")),
            )
        except (ValueError, AttributeError, TypeError) as wrong:
            raise ConfigError(
                f"{data[:80]!r} is no message: {wrong}",
                hint='one JSON object per line, as in {"key": "k", "payload": "text", "headers": {}}',
            ) from None


def _field(found: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in found:
        return base64.b64decode(found[f"{name}_base64"], validate=True)
    value = found.get(name)
    if value is None:
        return None
    # What is no text is taken as the JSON that it is.
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()


def _key(key: bytes) -> str | bytes:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


async def repeated(messages: Iterable[str], times: int) -> AsyncIterator[bytes]:
    for message in messages:
        for _ in range(times):
            yield message.encode("utf-8", "surrogateescape")


async def read_all(files: Iterable[str], reading: Reading) -> AsyncIterator[bytes]:
    """What the files hold (`-` is standard input), each cut as the format says."""
    for name in files:
        source = _opened(name)
        try:
            if reading.format is InputFormat.WHOLE:
                yield await asyncio.to_thread(source.read)
            else:
                async for piece in _pieces(source, reading.delimiter):
                    if piece or reading.format is not InputFormat.JSON:
                        yield piece
        finally:
            if source is not sys.stdin.buffer:
                source.close()


def _opened(name: str) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    try:
        return Path(name).open("rb")
    except OSError as failure:
        raise ConfigError(f"cannot read {name}: {failure.strerror}", hint="check --file") from None


async def _pieces(source: BinaryIO, delimiter: bytes) -> AsyncIterator[bytes]:
    """As they come; read in a thread, so that the connection stays alive meanwhile."""
    read: Callable[[int], bytes] = getattr(source, "read1", source.read)
    rest, lines = b"", delimiter == b"\n"
    while data := await asyncio.to_thread(read, _READ_BYTES):
        *pieces, rest = (rest + data).split(delimiter)
        for piece in pieces:
            yield piece.removesuffix(b"\r") if lines else piece
    if rest:
        yield rest
