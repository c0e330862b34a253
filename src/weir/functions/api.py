"""What a function sees: the message, and its context with state by key, configuration, log, and more to send."""

import json
import logging
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from weir.model.errors import FunctionError

#: Keys and headers that are no UTF-8 come back as they were.
ESCAPED = "surrogateescape"


@dataclass(slots=True)
class Message:
    """A message that came, or one to send: `Message(value, key=..., headers=..., topic=...)`.

    `value`: typed where the topic has a schema, else bytes. To send: bytes and text go as they are, anything else
    by the schema of the topic, or as JSON. `topic`: where it came from, or goes to; None is the function's output.
    """

    value: Any = None
    #: Text, or what a KEY_VALUE schema says.
    key: Any = None
    headers: Mapping[str, str | bytes] = field(default_factory=dict)
    topic: str | None = None
    timestamp_ms: int | None = None
    #: Of one that came: the bytes, where it was, and for the how many-th time it is delivered to the function.
    data: bytes | None = None
    partition: int = -1
    offset: int = -1
    attempt: int = 1

    def json(self) -> Any:
        """The bytes that came, read as JSON."""
        return json.loads(self.data or b"null")

    @property
    def text(self) -> str:
        """The bytes that came, as text."""
        return (self.data or b"").decode()


class State(MutableMapping[str, Any]):
    """What the function remembers of the message's key: names and values that JSON could have, and bytes.

    It is stored with what the function sends and with its position, or not at all; so it counts each message once.
    """

    def __init__(self, stored: bytes | None) -> None:
        self._stored = stored
        self._found: dict[str, Any] | None = None

    def _values(self) -> dict[str, Any]:
        if self._found is None:
            self._found = {} if self._stored is None else msgspec.msgpack.decode(self._stored)
        return self._found

    def __getitem__(self, name: str) -> Any:
        return self._values()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._values()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def encoded(self) -> bytes | None:
        """As it is stored; None: there is none."""
        if self._found is None:
            return self._stored
        return msgspec.msgpack.encode(self._found, order="deterministic") if self._found else None


class _NoState(State):
    def _values(self) -> dict[str, Any]:
        raise FunctionError("the function is deployed without state", hint="deploy or update it with --stateful")


@dataclass(slots=True)
class Context:
    """Beside the message: who is called, what was configured, and what more is sent."""

    #: The function's name, its version, and which of its processes this is.
    name: str
    version: int
    instance: int
    #: What `--set name=value` said.
    config: Mapping[str, str]
    log: logging.Logger
    #: Of the message's key; messages without a key share one.
    state: State = field(default_factory=lambda: _NoState(None))
    key: Any = None
    #: For the how many-th time this message is delivered to the function.
    attempt: int = 1
    _more: list[Message] = field(default_factory=list)

    def send(
        self,
        value: Any,
        *,
        topic: str | None = None,
        key: Any = None,
        headers: Mapping[str, str | bytes] | None = None,
    ) -> None:
        """Send one more message, before what is returned: with it, or not at all."""
        if isinstance(value, Message):
            self._more.append(value)
        else:
            self._more.append(Message(value, key, headers or {}, topic))

    def taken(self) -> list[Message]:
        """What was sent since the last call."""
        more, self._more = self._more, []
        return more


def no_state() -> State:
    """Of a function that is deployed without it: says so when it is used."""
    return _NoState(None)
