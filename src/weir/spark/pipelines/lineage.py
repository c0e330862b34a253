"""The lineage as a picture: datasets in layers from left to right, flows as lines between them. SVG by hand; PNG
where matplotlib is installed.

Runs as events of OpenLineage: which flow read and wrote what, when it began, and how it ended.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid5

from weir import __version__
from weir.client.kafka.cluster import Cluster
from weir.client.kafka.produce import Sender
from weir.client.kafka.settings import KafkaSettings
from weir.model.errors import ConfigError, NetworkError
from weir.spark.pipelines.graph import Dataset, FlowEdge, Graph, Kind
from weir.spark.pipelines.spec import Spec
from weir.wire.kafka.records import Record, build_batch

_WIDE, _HIGH, _LANE, _GAP_X, _GAP_Y, _MARGIN = 200, 56, 8, 130, 28, 24
#: So many letters fit: of a dataset, of what is below its name, of a flow.
_LONGEST, _LONGEST_BELOW, _LONGEST_FLOW = 24, 32, 20
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


@dataclass(frozen=True, slots=True)
class Line:
    """A flow from one dataset to another, by points: between the first and second it has its name. Where datasets
    stand in between, it goes past them by a row of its own."""

    points: tuple[tuple[float, float], ...]
    name: str


@dataclass(frozen=True, slots=True)
class Picture:
    boxes: Mapping[str, Box]
    lines: Sequence[Line]
    wide: float
    high: float


def place(graph: Graph) -> Picture:
    """Where everything stands. Within a layer that is near what it is made of, so lines cross less; lines of one
    dataset go past a layer together."""
    layers, edges = graph.layers(), _edges(graph)
    depths = {name: depth for depth, layer in enumerate(layers) for name in layer}
    passing = [
        list(dict.fromkeys(begin for begin, end, _ in edges if depths[begin] < depth < depths[end]))
        for depth in range(len(layers))
    ]
    tall = [_tall(len(layer), len(past)) for layer, past in zip(layers, passing, strict=True)]
    highest = max(tall, default=_HIGH)
    boxes: dict[str, Box] = {}
    #: How high each line has come to so far.
    heights: list[list[float]] = [[] for _ in edges]
    for depth, layer in enumerate(layers):
        past = {
            name: [at for at, (begin, end, _) in enumerate(edges) if begin == name and depths[end] > depth]
            for name in passing[depth]
        }
        rows: list[tuple[float, str, str]] = [(heights[lines[0]][-1], "", name) for name, lines in past.items()]
        for name in layer:
            comes = [heights[at][-1] for at, (_, end, _) in enumerate(edges) if end == name and heights[at]]
            rows.append((sum(comes) / len(comes) if comes else 0.0, name, ""))
        y = _MARGIN + (highest - tall[depth]) / 2
        for _, name, lane in sorted(rows):
            if lane:
                for at in past[lane]:
                    heights[at].append(y + _LANE / 2)
                y += _LANE + _GAP_Y
                continue
            boxes[name] = _box(graph, name, _x(depth), y)
            for mine, (begin, _, _) in enumerate(edges):
                if begin == name:
                    heights[mine].append(y + _HIGH / 2)
            y += _HIGH + _GAP_Y
    lines = [
        Line(_points(depths[begin], heights[at], boxes[end]), name) for at, (begin, end, name) in enumerate(edges)
    ]
    wide = _x(max(len(layers) - 1, 0)) + _WIDE + _MARGIN
    return Picture(boxes, lines, wide, 2 * _MARGIN + highest)


def _tall(boxes: int, lanes: int) -> float:
    return boxes * _HIGH + lanes * _LANE + max(0, boxes + lanes - 1) * _GAP_Y


def _x(depth: int) -> float:
    return _MARGIN + depth * (_WIDE + _GAP_X)


def _points(depth: int, heights: Sequence[float], end: Box) -> tuple[tuple[float, float], ...]:
    """Both edges of each layer that it passes."""
    found = [(_x(depth) + _WIDE, heights[0])]
    for past, y in enumerate(heights[1:], depth + 1):
        found += [(_x(past), y), (_x(past) + _WIDE, y)]
    return (*found, (end.x, end.y + _HIGH / 2))


def _box(graph: Graph, name: str, x: float, y: float) -> Box:
    dataset = graph.datasets.get(name)
    kind = Kind.OUTSIDE if dataset is None else dataset.kind
    topic = None if dataset is None else dataset.topic
    fill, line = _COLOURS[kind]
    below = kind.value if topic in (None, name) else f"{kind.value}: {topic}"
    return Box(x, y, name, below, fill, line)


def _cut(text: str, most: int) -> str:
    """Names that are long are often alike at their beginning, and not at their end."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-(most - most // 2) :]}"


def _edges(graph: Graph) -> list[tuple[str, str, str]]:
    """From, to, and the flow's name where it is not its target's."""
    return [
        (one, flow.target, "" if flow.name == flow.target else flow.name)
        for flow in graph.flows
        for one in flow.inputs
    ]


def svg(graph: Graph, title: str) -> str:
    """A whole document."""
    picture = place(graph)
    wide, high = picture.wide, picture.high
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{high:.0f}" '
        f'viewBox="0 0 {wide:.0f} {high:.0f}" font-family="sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#555"/></marker></defs>',
        f'<rect width="{wide:.0f}" height="{high:.0f}" fill="#fff"/>',
    ]
    for line in picture.lines:
        (x, y), *others = line.points
        path = f"M{x:.0f} {y:.0f}"
        for x2, y2 in others:
            half = (x + x2) / 2
            path += f" C{half:.0f} {y:.0f} {half:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"
            x, y = x2, y2
        parts.append(f'<path d="{path}" fill="none" stroke="#555" marker-end="url(#arrow)"/>')
        if line.name:
            x, y = _named_at(line)
            parts.append(
                f"<g><title>{escape(line.name)}</title>"
                f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" font-size="11" '
                f'fill="#555">{escape(_cut(line.name, _LONGEST_FLOW))}</text></g>'
            )
    for box in picture.boxes.values():
        middle = box.x + _WIDE / 2
        parts.append(
            f"<g><title>{escape(f'{box.title}, {box.below}')}</title>"
            f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{_WIDE}" height="{_HIGH}" rx="6" fill="{box.fill}" '
            f'stroke="{box.line}"/>'
            f'<text x="{middle:.0f}" y="{box.y + 24:.0f}" text-anchor="middle" font-weight="bold">'
            f"{escape(_cut(box.title, _LONGEST))}</text>"
            f'<text x="{middle:.0f}" y="{box.y + 43:.0f}" text-anchor="middle" font-size="11" fill="#555">'
            f"{escape(_cut(box.below, _LONGEST_BELOW))}</text></g>"
        )
    return "\n".join([*parts, "</svg>", ""])


def _named_at(line: Line) -> tuple[float, float]:
    (x1, y1), (x2, y2) = line.points[:2]
    return (x1 + x2) / 2, (y1 + y2) / 2 - 5


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
    picture = place(graph)
    wide, high = picture.wide, picture.high
    figure = Figure(figsize=(wide / 100, high / 100), dpi=150)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, wide)
    axes.set_ylim(high, 0)
    axes.axis("off")
    for line in picture.lines:
        for begin, end in pairwise(line.points[:-1]):
            axes.plot(*zip(begin, end, strict=True), color="#555", linewidth=1.0)
        arrow = FancyArrowPatch(*line.points[-2:], arrowstyle="-|>", mutation_scale=10, color="#555", shrinkA=0)
        axes.add_patch(arrow)
        if line.name:
            axes.text(*_named_at(line), _cut(line.name, _LONGEST_FLOW), ha="center", size=7, color="#555")
    for box in picture.boxes.values():
        axes.add_patch(
            FancyBboxPatch((box.x, box.y), _WIDE, _HIGH, "round,pad=0,rounding_size=6", fc=box.fill, ec=box.line)
        )
        title, below = _cut(box.title, _LONGEST), _cut(box.below, _LONGEST_BELOW)
        axes.text(box.x + _WIDE / 2, box.y + 22, title, ha="center", va="center", size=8.5, weight="bold")
        axes.text(box.x + _WIDE / 2, box.y + 41, below, ha="center", va="center", size=7, color="#555")
    figure.savefig(path)


Event = dict[str, Any]
Send = Callable[[Sequence[Event]], None]

_PRODUCER = f"urn:weir:{__version__}"
_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS = "https://openlineage.io/spec/facets"
_API = "/api/v1/lineage"
_TIMEOUT_S = 10.0


def events(spec: Spec, graph: Graph, servers: str, *, run: UUID, kind: str, why: str | None = None) -> list[Event]:
    """One for the pipeline and one for each flow. `kind`: START, COMPLETE, FAIL or ABORT; `why`: what failed."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    whole: Event = {
        "eventType": kind,
        "eventTime": now,
        "producer": _PRODUCER,
        "schemaURL": _SCHEMA,
        "run": {"runId": str(run), "facets": _error(why)},
        "job": _job(spec, spec.name, "PIPELINE"),
        "inputs": [_dataset(spec, one, servers) for one in graph.datasets.values() if one.kind is Kind.SOURCE],
        "outputs": [_dataset(spec, one, servers) for one in graph.datasets.values() if one.kind is Kind.SINK],
    }
    return [whole, *(_of_flow(whole, spec, graph, flow, servers) for flow in graph.flows)]


def _of_flow(whole: Event, spec: Spec, graph: Graph, flow: FlowEdge, servers: str) -> Event:
    run = whole["run"]
    parent = {
        **_facet("1-1-0/ParentRunFacet.json#/$defs/ParentRunFacet"),
        "run": {"runId": run["runId"]},
        "job": {"namespace": spec.namespace, "name": spec.name},
    }
    return whole | {
        "run": {
            "runId": str(uuid5(UUID(run["runId"]), flow.name)),
            "facets": {"parent": parent, **run["facets"]},
        },
        "job": _job(spec, f"{spec.name}.{flow.name}", "FLOW"),
        "inputs": [_dataset(spec, _known(graph, name), servers) for name in flow.inputs],
        "outputs": [_dataset(spec, _known(graph, flow.target), servers)],
    }


def _known(graph: Graph, name: str) -> Dataset:
    return graph.datasets.get(name, Dataset(name, Kind.OUTSIDE))


def _job(spec: Spec, name: str, kind: str) -> Event:
    facet = {
        **_facet("2-0-3/JobTypeJobFacet.json#/$defs/JobTypeJobFacet"),
        "processingType": "STREAMING",
        "integration": "WEIR",
        "jobType": kind,
    }
    return {"namespace": spec.namespace, "name": name, "facets": {"jobType": facet}}


def _dataset(spec: Spec, dataset: Dataset, servers: str) -> Event:
    """Topics by OpenLineage's names for those of Kafka; the others by their pipeline's."""
    facets: Event = {}
    if dataset.columns:
        fields = [{"name": name, "type": kind} for name, kind in dataset.columns]
        facets["schema"] = {**_facet("1-1-1/SchemaDatasetFacet.json#/$defs/SchemaDatasetFacet"), "fields": fields}
    if dataset.topic is not None:
        first = servers.partition(",")[0]
        return {"namespace": f"kafka://{first}", "name": dataset.topic, "facets": facets}
    return {"namespace": spec.namespace, "name": f"{spec.name}.{dataset.name}", "facets": facets}


def _facet(schema: str) -> Event:
    return {"_producer": _PRODUCER, "_schemaURL": f"{_FACETS}/{schema}"}


def _error(why: str | None) -> Event:
    if why is None:
        return {}
    facet = _facet("1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet")
    return {"errorMessage": {**facet, "message": why, "programmingLanguage": "python"}}


# --- where they go ----------------------------------------------------------------------------------------------


def sender(where: str, folder: Path, kafka: Callable[[], KafkaSettings]) -> Send:
    """`topic:NAME`, a URL, or a file (below `folder`), whose lines they become."""
    if where.startswith("topic:"):
        return lambda found: _to_topic(found, where.removeprefix("topic:"), kafka())
    if where.startswith(("http://", "https://")):
        return lambda found: _to_url(found, where)
    if "://" in where:
        raise ConfigError(f"events cannot go to {where}", hint="give a file, an http URL, or topic:NAME")
    return lambda found: _to_file(found, folder / where)


def _to_file(found: Sequence[Event], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(one)}\n" for one in found)


def _to_url(found: Sequence[Event], url: str) -> None:
    """As OpenLineage's own clients send them: one by one, to its path unless the URL has one."""
    whole = url if urlsplit(url).path.strip("/") else url.rstrip("/") + _API
    for one in found:
        request = urllib.request.Request(
            whole, json.dumps(one).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        try:
            urllib.request.urlopen(request, timeout=_TIMEOUT_S).close()
        except (urllib.error.URLError, OSError) as failure:
            raise NetworkError(f"{whole} did not take events: {failure}") from None


def _to_topic(found: Sequence[Event], topic: str, settings: KafkaSettings) -> None:
    """Keyed by the job, so that those of one job stay in order."""
    with Cluster(settings) as cluster:
        partitions = cluster.partitions([topic], create=True)
        sending = Sender(cluster)
        at_ms = round(datetime.now(UTC).timestamp() * 1000)
        by_job: Mapping[str, list[Event]] = {}
        for one in found:
            by_job = {**by_job, one["job"]["name"]: [*by_job.get(one["job"]["name"], []), one]}
        for job, mine in by_job.items():
            records = [Record(at, at_ms, job.encode(), json.dumps(one).encode()) for at, one in enumerate(mine)]
            partition = partitions[sum(job.encode()) % len(partitions)]
            sending.send({partition: build_batch(records)})
        sending.flush()
