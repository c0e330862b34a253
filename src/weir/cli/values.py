"""Moments, spans of time, sizes and pairs as people write them on the command line."""

import re
from datetime import UTC, datetime

from weir.model.errors import ConfigError

_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|m|h|d|w)?", re.ASCII)
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)i?b?", re.IGNORECASE | re.ASCII)
_SCALES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def parse_span_ms(text: str) -> int:
    """`10s`, `5min`, `2h`, `1.5d`; a bare number is seconds."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is not a span of time", hint="write 500ms, 10s, 5min, 2h or 7d")
    return round(float(found[1]) * _UNITS_MS[found[2] or "s"])


def parse_moment_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970, an ISO date and time (UTC unless it says otherwise), or `-10min`: so long ago."""
    text = text.strip()
    if text.startswith("-"):
        return now_ms - parse_span_ms(text[1:])
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a moment", hint="write 2030-01-31T12:00:00, milliseconds since 1970, or -10min"
        ) from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


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
