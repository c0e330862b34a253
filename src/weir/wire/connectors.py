"""Connectors and their progress, as values in the metadata store."""

from dataclasses import asdict
from typing import Any

from weir.model.connectors import Connector, ConnectorProgress, ConnectorWanted
from weir.model.topics import TopicName
from weir.wire.metadata import dump_fields
from weir.wire.stored_values import decode, number, text

_TEXTS = ("id", "state", "position", "error")
_COUNTS = ("records", "lag", "dead_letters", "failures", "failed_ms", "next_try_ms", "reported_ms")

#: Not in what an older Weir has stored.
_LATER = ("restarts", "batch_ms")


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
    return decode(
        data,
        "a connector",
        lambda f: Connector(
            TopicName.parse(text(f["name"])),
            text(f["id"]),
            text(f["config"]),
            ConnectorWanted(f["wanted"]),
            text(f["role"]),
            number(f["created_ms"]),
        ),
    )


def encode_connector_progress(progress: ConnectorProgress) -> bytes:
    return dump_fields(asdict(progress))


def decode_connector_progress(data: bytes) -> ConnectorProgress:
    return decode(data, "a connector's progress", lambda f: ConnectorProgress(**_progress(f)))


def _progress(found: dict[str, Any]) -> dict[str, Any]:
    texts = {name: text(found[name]) for name in _TEXTS}
    counts = {name: number(found[name]) for name in _COUNTS}
    later = {name: number(found.get(name, 0)) for name in _LATER}
    return texts | counts | later | {"records_per_second": float(found["records_per_second"])}
