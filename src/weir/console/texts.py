"""Numbers, sizes, moments and spans as people read them: the filters of the templates."""

import json
from datetime import UTC, datetime

_SCALES = ("", "k", "M", "G", "T")


def count(value: float | None) -> str:
    """A number with as many digits as one can take in: 950, 12.3k, 4.1M."""
    return "–" if value is None else _scaled(float(value), 1000, _SCALES)


def exact(value: int | None) -> str:
    """Every digit, in groups of three."""
    return "–" if value is None else f"{value:,}".replace(",", "\u202f")


def size(value: float | None) -> str:
    """Bytes."""
    return "–" if value is None else _scaled(float(value), 1024, (" B", " KiB", " MiB", " GiB", " TiB"))


def rate(value: float | None) -> str:
    """Per second; what is left of a rate that has ended is none."""
    if value is None or value < 0.05:
        return "0"
    return f"{value:.1f}" if value < 10 else count(value)


def byte_rate(value: float | None) -> str:
    return f"{size(0 if value is None or value < 1 else value)}/s"


def moment(wall_ms: int | None) -> str:
    """UTC, to the millisecond."""
    if not wall_ms or wall_ms < 0:
        return "–"
    try:
        at = datetime.fromtimestamp(wall_ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return str(wall_ms)
    return at.strftime("%Y-%m-%d %H:%M:%S") + f".{wall_ms % 1000:03d}"


def span(seconds: float | None) -> str:
    """How long: 3 s, 5 min, 2 h, 4 d."""
    if seconds is None:
        return "–"
    for unit, length in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= length * 1.5:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def pretty(value: object) -> str:
    """JSON, laid out."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    unit = 0
    while abs(value) >= base and unit < len(units) - 1:
        value /= base
        unit += 1
    digits = f"{value:.0f}" if unit == 0 or abs(value) >= 100 else f"{value:.1f}".removesuffix(".0")
    return digits + units[unit]


FILTERS = {
    "count": count,
    "exact": exact,
    "size": size,
    "rate": rate,
    "byte_rate": byte_rate,
    "moment": moment,
    "span": span,
    "pretty": pretty,
}
