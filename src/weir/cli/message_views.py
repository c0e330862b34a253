"""A message as a line for people, or as JSON for programs."""

import base64
from collections.abc import Mapping
from typing import Any

from weir.cli.values import show_moment


def readable(payload: bytes) -> str:
    """As text if it is text, else as Python would show it."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return repr(payload)[2:-1]
    return text if text.isprintable() else repr(text)[1:-1]


def message_json(
    *,
    at: str,
    payload: bytes,
    key: bytes | None = None,
    properties: Mapping[str, str] | None = None,
    publish_ms: int = 0,
    **more: Any,
) -> dict[str, Any]:
    """Bytes that are not UTF-8 go into a field of another name, as base64."""
    found: dict[str, Any] = {"id": at}
    found |= _bytes("key", key) if key is not None else {}
    found |= _bytes("payload", payload)
    found["properties"] = dict(properties or {})
    found["published"] = show_moment(publish_ms)
    return found | {name: value for name, value in more.items() if value not in (None, 0, "")}


def _bytes(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
