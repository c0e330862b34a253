"""Moments and spans of time as people write them, in commands and in statements."""

import re
from datetime import UTC, datetime

from weir.model.errors import ConfigError

_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|m|h|d|w)?", re.ASCII)
#: The last one of the year 9999, as of ISO's dates: what is later no calendar knows.
_LAST_MS = 253_402_300_799_999
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def parse_span_ms(text: str) -> int:
    """`10s`, `5min`, `2h`, `1.5d`; a bare number is seconds."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is not a span of time", hint="write 500ms, 10s, 5min, 2h or 7d")
    return round(float(found[1]) * _UNITS_MS[found[2] or "s"])


def parse_moment_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970, an ISO date and time (UTC unless it says otherwise), or `-10min`: so long ago.
    What is before 1970 is 1970: no message is older."""
    text = text.strip()
    if text.startswith("-"):
        return max(0, now_ms - parse_span_ms(text[1:]))
    if text.isascii() and text.isdigit() and int(text) <= _LAST_MS:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a moment", hint="write 2030-01-31T12:00:00, milliseconds since 1970, or -10min"
        ) from None
    return max(0, round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))
