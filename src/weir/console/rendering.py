"""Plots as inline SVG, made by the server: lines over time, with no script and no style of their own.

Numbers, sizes, moments and spans as people read them: the filters of the templates.

Templates as package data, everything in them escaped.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from weir import __version__

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

_WIDTH, _HEIGHT = 600, 150
_LEFT, _TOP, _BOTTOM = 4, 18, 18


@dataclass(frozen=True, slots=True)
class Line:
    """`points`: (seconds, value), in order of time. `kind` names its colour in the style sheet."""

    label: str
    points: Sequence[tuple[float, float]]
    kind: str = "a"


def plot(
    title: str, lines: Sequence[Line], show: Callable[[float], str], *, now_s: float, span_s: float
) -> Markup:
    """Lines over the last `span_s` seconds, from zero to the largest value, with what they are now in words."""
    top = max((value for line in lines for _, value in line.points), default=0.0) or 1.0
    body = [
        f'<line class="axis" x1="0" x2="{_WIDTH}" y1="{_y(part, 1.0):.1f}" y2="{_y(part, 1.0):.1f}"/>'
        for part in (0.0, 0.5, 1.0)
    ]
    for line in lines:
        places = [(_x(at, now_s, span_s), _y(value, top)) for at, value in line.points if at >= now_s - span_s]
        if len(places) == 1:
            places.insert(0, (places[0][0] - 1, places[0][1]))
        if places:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            floor = _y(0.0, 1.0)
            area = f"{places[0][0]:.1f},{floor:.1f} {path} {places[-1][0]:.1f},{floor:.1f}"
            body.append(f'<polygon class="area {line.kind}" points="{area}"/>')
            body.append(f'<polyline class="line {line.kind}" points="{path}"/>')
    words = ", ".join(f"{line.label} {show(line.points[-1][1]) if line.points else '–'}" for line in lines)
    legend = "".join(
        f'<li class="{escape(line.kind)}"><span>{escape(line.label)}</span> '
        f"<b>{escape(show(line.points[-1][1]) if line.points else '–')}</b></li>"
        for line in lines
    )
    drawn = (
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}: {escape(words)}">{"".join(body)}</svg>'
    )
    highest = f'<div class="scale top"><span>{escape(show(top))}</span></div>'
    ages = f'<div class="scale"><span>{span_s / 60:.0f} min ago</span><span>now</span></div>'
    # Everything from outside was escaped above.
    return Markup(
        f'<figure class="chart"><figcaption>{escape(title)}<ul class="legend">{legend}</ul></figcaption>'
        f"{highest}{drawn}{ages}</figure>"
    )


def spark(values: Sequence[float], kind: str = "a", label: str = "") -> Markup:
    """A small line without axes, for a table's row."""
    if len(values) < 2 or not any(values):
        return Markup(
            '<svg class="spark" viewBox="0 0 80 20" aria-hidden="true">'
            '<line class="axis" x1="0" x2="80" y1="19" y2="19"/></svg>'
        )
    top = max(values) or 1.0
    step = 80 / (len(values) - 1)
    path = " ".join(f"{at * step:.1f},{19 - 17 * value / top:.1f}" for at, value in enumerate(values))
    return Markup(
        f'<svg class="spark" viewBox="0 0 80 20" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}"><polyline class="line {escape(kind)}" points="{path}"/></svg>'
    )


def _x(at: float, now_s: float, span_s: float) -> float:
    return _WIDTH * (1 - (now_s - at) / span_s)


def _y(value: float, top: float) -> float:
    room = _HEIGHT - _TOP - _BOTTOM
    return _TOP + room * (1 - min(1.0, max(0.0, value / top)))


class Templates:
    def __init__(self) -> None:
        from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape  # who looks waits for it

        self._environment = Environment(
            loader=PackageLoader("weir.console", "templates"),
            autoescape=select_autoescape(default=True, default_for_string=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(FILTERS)
        self._environment.globals.update(version=__version__, spark=spark)

    def render(self, template: str, **values: Any) -> str:
        page: str = self._environment.get_template(template).render(**values)
        return page
