"""Messages as tests see them, whatever protocol they came by.

What can go wrong between a test and its broker.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message. Two with the same `topic`, `partition` and `offset` are the same."""

    topic: str
    #: None where the topic has no partitions, or is a queue in memory.
    partition: int | None
    offset: int
    key: bytes | None
    #: None is a tombstone.
    value: bytes | None
    headers: Mapping[str, bytes] = field(default_factory=dict)
    #: When it was published: Kafka's and Pulsar's clients say so by their own clock.
    timestamp: datetime = _EPOCH
    #: When the broker stored it, by the broker's clock, which tests move.
    stored_at: datetime = _EPOCH

    @property
    def text(self) -> str:
        return (self.value or b"").decode()

    def json(self) -> Any:
        return json.loads(self.value or b"null")


def message_from(item: Mapping[str, Any]) -> Message:
    """As the broker's process tells it."""
    return Message(
        item["topic"],
        item["partition"],
        item["offset"],
        _bytes(item["key"]),
        _bytes(item["value"]),
        {name: _bytes(text) or b"" for name, text in item["headers"]},
        moment_of(item["publish_ms"]),
        moment_of(item["stored_ms"]),
    )


def message_to(value: object, key: object, headers: Mapping[str, object] | None) -> dict[str, Any]:
    """As the broker's process is told it."""
    return {
        "value": _text(value),
        "key": _text(key),
        "headers": [(name, _text(said) or "") for name, said in (headers or {}).items()],
    }


def moment_of(wall_ms: float) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _text(value: object) -> str | None:
    """Bytes as they are, text in UTF-8, everything else as JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, bytes | bytearray | memoryview):
        value = json.dumps(value).encode()
    return base64.b64encode(value).decode()


class BrokerFailedError(RuntimeError):
    """The broker could not be started, is not there, or refused what it was asked."""


class NotYetError(AssertionError):
    """What a test waited for did not come; the text says what there is instead."""
