"""Moments, spans of time, sizes and pairs as people write them on the command line."""

import re
from datetime import UTC, datetime

from weir.model.errors import ConfigError
from weir.model.moments import parse_moment_ms, parse_span_ms

__all__ = ["parse_moment_ms", "parse_pairs", "parse_size", "parse_span_ms", "short_topic", "show_moment"]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)i?b?", re.IGNORECASE | re.ASCII)
_SCALES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def parse_size(text: str) -> int:
    """Bytes: `512`, `64K`, `10MiB`, `1G`; -1 for no bound."""
    if text.strip() == "-1":
        return -1
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is not a size", hint="write bytes, or 64K, 10M, 1G; -1 for no bound")
    return round(float(found[1]) * _SCALES[found[2].lower()])


def parse_pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """`name=value`, each."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"{text!r} is not a pair", hint="write name=value")
        pairs[name] = value
    return pairs


def show_moment(wall_ms: int) -> str:
    """A moment in UTC, to the millisecond."""
    if not wall_ms:
        return ""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def short_topic(name: str) -> str:
    """A topic as people type it: bare in public/default, else tenant/namespace/topic; others in full."""
    rest = name.removeprefix("persistent://")
    return rest.removeprefix("public/default/")
