"""Durations as people write them."""

import re
from datetime import timedelta

_UNITS_S = {
    "ms": 0.001,
    "millisecond": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "d": 86_400.0,
    "day": 86_400.0,
    "w": 604_800.0,
    "week": 604_800.0,
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*,?(?:\s*and\s)?", re.IGNORECASE)

Duration = str | int | float | timedelta


def seconds_of(duration: Duration) -> float:
    """Of "3 days", "1h 30min", a timedelta, or seconds; ValueError for anything else, and for what is negative."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        seconds = _parsed(duration)
    else:
        seconds = float(duration)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{duration!r} is no duration: a clock goes forward only")
    return seconds


def _parsed(text: str) -> float:
    at, seconds = 0, 0.0
    while at < len(text):
        found = _PART.match(text, at)
        unit = (
            None if found is None else _UNITS_S.get(found[2].lower(), _UNITS_S.get(found[2].lower().rstrip("s")))
        )
        if found is None or unit is None:
            raise ValueError(f"{text!r} is no duration: write it as '3 days', '1h 30min' or '250 ms'")
        seconds += float(found[1]) * unit
        at = found.end()
    if not text.strip():
        raise ValueError("an empty text is no duration")
    return seconds
