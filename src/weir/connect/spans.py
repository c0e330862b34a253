"""Spans of time and sizes as files write them: `500ms`, `5s`, `1min`, `2h`, `64MB`."""

import re

_SPANS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def parse_ms(text: str) -> int | None:
    """None if it is no span."""
    found = re.fullmatch(r"(\d+)\s*(ms|s|min|h|d)", text.strip())
    return None if found is None else int(found[1]) * _SPANS[found[2]]


def parse_bytes(text: str) -> int | None:
    """None if it is no size above zero."""
    found = re.fullmatch(r"(\d+)\s*([kmg]i?)?b?", text.strip().lower())
    size = 0 if found is None else int(found[1]) * _SIZES[found[2] or ""]
    return size or None
