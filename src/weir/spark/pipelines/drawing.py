"""The lineage as a picture: datasets in layers from left to right, flows as lines between them. SVG by hand; PNG
where matplotlib is installed."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from weir.model.errors import ConfigError
from weir.spark.pipelines.graph import Graph, Kind

_WIDE, _HIGH, _GAP_X, _GAP_Y, _MARGIN = 200, 56, 110, 28, 24
_LONGEST = 26
_COLOURS = {
    Kind.SOURCE: ("#e3f0fb", "#2f6fb0"),
    Kind.SINK: ("#e5f5e6", "#3b8a43"),
    Kind.STREAMING_TABLE: ("#fdf3dd", "#b0812f"),
    Kind.MATERIALIZED_VIEW: ("#fbe9e3", "#b0532f"),
    Kind.VIEW: ("#f4f4f4", "#777777"),
    Kind.OUTSIDE: ("#ffffff", "#999999"),
}


@dataclass(frozen=True, slots=True)
class Box:
    """Where a dataset stands, in pixels from the upper left corner."""

    x: float
    y: float
    title: str
    below: str
    fill: str
    line: str


def place(graph: Graph) -> dict[str, Box]:
    """Each dataset's place. Within a layer they stand near what they are made of, so lines cross less."""
    layers = graph.layers()
    highest = max((len(layer) for layer in layers), default=1)
    before: dict[str, list[str]] = {}
    for flow in graph.flows:
        before.setdefault(flow.target, []).extend(flow.inputs)
    found: dict[str, Box] = {}
    for depth, layer in enumerate(layers):
        ordered = sorted(layer, key=lambda name: (_middle(before.get(name, ()), found), name))
        top = _MARGIN + (highest - len(layer)) * (_HIGH + _GAP_Y) / 2
        for row, name in enumerate(ordered):
            dataset = graph.datasets.get(name)
            kind = Kind.OUTSIDE if dataset is None else dataset.kind
            topic = None if dataset is None else dataset.topic
            fill, line = _COLOURS[kind]
            below = kind.value if topic in (None, name) else f"{kind.value}: {topic}"
            x, y = _MARGIN + depth * (_WIDE + _GAP_X), top + row * (_HIGH + _GAP_Y)
            found[name] = Box(x, y, _cut(name), _cut(below, _LONGEST + 6), fill, line)
    return found


def _middle(inputs: Any, found: Mapping[str, Box]) -> float:
    heights = [found[name].y for name in inputs if name in found]
    return sum(heights) / len(heights) if heights else 0.0


def _cut(text: str, most: int = _LONGEST) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _lines(graph: Graph) -> list[tuple[str, str, str]]:
    """From, to, and the flow's name where it is not its target's."""
    return [
        (one, flow.target, "" if flow.name == flow.target else flow.name)
        for flow in graph.flows
        for one in flow.inputs
    ]


def _size(boxes: Mapping[str, Box]) -> tuple[float, float]:
    wide = max((box.x for box in boxes.values()), default=0) + _WIDE + _MARGIN
    high = max((box.y for box in boxes.values()), default=0) + _HIGH + _MARGIN
    return wide, high


def svg(graph: Graph, title: str) -> str:
    """A whole document."""
    boxes = place(graph)
    wide, high = _size(boxes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{high:.0f}" '
        f'viewBox="0 0 {wide:.0f} {high:.0f}" font-family="sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>',
        f'<rect width="{wide:.0f}" height="{high:.0f}" fill="#fff"/>',
    ]
    for begin, end, name in _lines(graph):
        one, other = boxes[begin], boxes[end]
        x1, y1, x2, y2 = one.x + _WIDE, one.y + _HIGH / 2, other.x, other.y + _HIGH / 2
        half = (x1 + x2) / 2
        parts.append(
            f'<path d="M{x1:.0f} {y1:.0f} C{half:.0f} {y1:.0f} {half:.0f} {y2:.0f} {x2:.0f} {y2:.0f}" '
            'fill="none" stroke="#555" marker-end="url(#arrow)"/>'
        )
        if name:
            parts.append(
                f'<text x="{half:.0f}" y="{(y1 + y2) / 2 - 5:.0f}" text-anchor="middle" font-size="11" '
                f'fill="#555">{escape(_cut(name, 16))}</text>'
            )
    for box in boxes.values():
        middle = box.x + _WIDE / 2
        parts.append(
            f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{_WIDE}" height="{_HIGH}" rx="6" fill="{box.fill}" '
            f'stroke="{box.line}"/>'
            f'<text x="{middle:.0f}" y="{box.y + 24:.0f}" text-anchor="middle" font-weight="bold">'
            f"{escape(box.title)}</text>"
            f'<text x="{middle:.0f}" y="{box.y + 43:.0f}" text-anchor="middle" font-size="11" fill="#555">'
            f"{escape(box.below)}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def write(graph: Graph, title: str, path: Path) -> None:
    """By the file's ending: `.svg`, or `.png`."""
    if path.suffix == ".svg":
        path.write_text(svg(graph, title), encoding="utf-8")
    elif path.suffix == ".png":
        _png(graph, path)
    else:
        raise ConfigError(f"{path.name} is no picture that can be drawn", hint="end the name with .svg or .png")


def _png(graph: Graph, path: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
    except ImportError:
        raise ConfigError(
            "PNG is drawn by matplotlib, which is not installed", hint="end the name with .svg"
        ) from None
    boxes = place(graph)
    wide, high = _size(boxes)
    figure = Figure(figsize=(wide / 100, high / 100), dpi=150)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, wide)
    axes.set_ylim(high, 0)
    axes.axis("off")
    for begin, end, name in _lines(graph):
        one, other = boxes[begin], boxes[end]
        start, stop = (one.x + _WIDE, one.y + _HIGH / 2), (other.x, other.y + _HIGH / 2)
        axes.add_patch(FancyArrowPatch(start, stop, arrowstyle="-|>", mutation_scale=10, color="#555"))
        if name:
            axes.text((start[0] + stop[0]) / 2, (start[1] + stop[1]) / 2 - 5, name, ha="center", size=7)
    for box in boxes.values():
        axes.add_patch(
            FancyBboxPatch((box.x, box.y), _WIDE, _HIGH, "round,pad=0,rounding_size=6", fc=box.fill, ec=box.line)
        )
        axes.text(box.x + _WIDE / 2, box.y + 22, box.title, ha="center", va="center", size=9, weight="bold")
        axes.text(box.x + _WIDE / 2, box.y + 41, box.below, ha="center", va="center", size=7, color="#555")
    figure.savefig(path)
