"""Plots as inline SVG, made by the server: lines over time, with no script and no style of their own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

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
