"""Connectors and their progress, as values in the metadata store."""

from dataclasses import asdict
from typing import Any

from weir.model.connectors import Connector, ConnectorProgress, ConnectorWanted
from weir.model.errors import InvalidNameError, WireError
from weir.model.topics import TopicName
from weir.wire.metadata import dump_fields, load_fields

_BAD = (KeyError, ValueError, TypeError, AttributeError, OverflowError, InvalidNameError)
_TEXTS = ("id", "state", "position", "error")
_COUNTS = ("records", "lag", "dead_letters", "failures", "failed_ms", "next_try_ms", "reported_ms")

#: Not in what an older Weir has stored.
_LATER = ("restarts", "batch_ms")


def _text(item: Any) -> str:
    if not isinstance(item, str):
        raise TypeError(f"{type(item).__name__} instead of text")
    return item


def _number(item: Any) -> int:
    if not isinstance(item, int) or isinstance(item, bool):
        raise TypeError(f"{type(item).__name__} instead of a whole number")
    return item


def encode_connector(connector: Connector) -> bytes:
    return dump_fields(
        {
            "name": str(connector.name),
            "id": connector.id,
            "config": connector.config,
            "wanted": connector.wanted.value,
            "role": connector.role,
            "created_ms": connector.created_ms,
        }
    )


def decode_connector(data: bytes) -> Connector:
    found = load_fields(data, "a connector")
    try:
        return Connector(
            TopicName.parse(_text(found["name"])),
            _text(found["id"]),
            _text(found["config"]),
            ConnectorWanted(found["wanted"]),
            _text(found["role"]),
            _number(found["created_ms"]),
        )
    except _BAD as bad:
        raise WireError(f"a connector is malformed: {bad!r}") from bad


def encode_connector_progress(progress: ConnectorProgress) -> bytes:
    return dump_fields(asdict(progress))


def decode_connector_progress(data: bytes) -> ConnectorProgress:
    found = load_fields(data, "a connector's progress")
    try:
        said: dict[str, Any] = {name: _text(found[name]) for name in _TEXTS}
        said |= {name: _number(found[name]) for name in _COUNTS}
        said |= {name: _number(found.get(name, 0)) for name in _LATER}
        return ConnectorProgress(records_per_second=float(found["records_per_second"]), **said)
    except _BAD as bad:
        raise WireError(f"a connector's progress is malformed: {bad!r}") from bad
