"""Results as a table for people, JSON for programs and a picture of the ratios."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.machine import QUIET_CORES
from bench.stats import Spread

RAW_LIMIT = "raw limit"
#: Of rows that stand beside nothing.
ALONE = "alone"


@dataclass(frozen=True, slots=True)
class Target:
    """What the row should reach: a ratio to the raw limit, or a value of its own."""

    says: str
    met: Callable[[Spread, Spread | None], bool]


@dataclass(frozen=True, slots=True)
class Result:
    """One row: the value, the raw limit beside it, and their ratio, each over all rounds."""

    group: str
    section: str
    title: str
    unit: str
    value: Spread
    raw_title: str = ""
    raw: Spread | None = None
    ratio: Spread | None = None
    lower_is_better: bool = False
    target: str = ""
    met: bool | None = None
    #: Cores that others used meanwhile.
    busy_cores: float = 0.0
    #: What the raw column stands for: a limit of the machine, or another broker.
    beside: str = RAW_LIMIT

    @property
    def verdict(self) -> str:
        """Whether the target is met; a busy machine slows raw limits and Weir, but not alike."""
        if self.met is None:
            return ""
        said = "yes" if self.met else "**no**"
        return said if self.busy_cores < QUIET_CORES else f"{said}, but measured on a busy machine"


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that stand beside the same kind of thing, and the files that they go to."""

    title: str
    other: str
    costs: str
    json: str
    picture: str
    #: How the name of what Weir stands beside begins.
    beside: str

    def holds(self, row: Result) -> bool:
        return row.beside.startswith(self.beside)


_PARTS = (
    Part(
        "Storage beside the raw limits of the same machine",
        "the raw limit",
        "Latency",
        "results",
        "ratios",
        RAW_LIMIT,
    ),
    Part(
        "Weir beside Apache Pulsar, same client, same machine",
        "Pulsar's",
        "Cost",
        "pulsar",
        "pulsar",
        "Apache Pulsar",
    ),
    Part("Broker and bookie in two processes beside one", "one process's", "Cost", "hops", "hops", "one process"),
    Part(
        "Weir beside Apache Kafka, same client, same machine", "Kafka's", "Cost", "kafka", "kafka", "Apache Kafka"
    ),
    Part("Weir beside RabbitMQ, same client, same machine", "RabbitMQ's", "Cost", "amqp", "amqp", "RabbitMQ"),
    Part(
        "Spark on Weir beside Spark on Kafka, same machine",
        "the connector's",
        "Latency",
        "spark",
        "spark",
        "Kafka",
    ),
    Part("Topics as tables beside plain Parquet files", "plain Parquet's", "Latency", "lake", "lake", "Parquet"),
    Part("Reads from the lake beside reads from ledgers", "ledgers'", "Latency", "tiered", "tiered", "ledgers"),
    Part("A cluster of processes on one machine", "nothing", "Pauses", "cluster", "cluster", ALONE),
)


def number(value: float) -> str:
    """Three significant digits, thousands with commas."""
    if value >= 1000:
        return f"{round(value, 2 - len(str(int(value))) + 1):,.0f}"
    return f"{value:.3g}"


def _with_spread(spread: Spread) -> str:
    return f"{number(spread.median)} ({number(spread.low)}-{number(spread.high)})"


def table(results: list[Result], facts: dict[str, Any], title: str = _PARTS[0].title) -> str:
    """All rows as Markdown, section by section."""
    lines = [f"# {title}", ""]
    lines += [f"Made by `make bench`: {'; '.join(f'{k} {v}' for k, v in facts.items())}.", ""]
    lines += [
        "Each value is the median of the rounds, with the lowest and highest round in brackets. The ratio is",
        "taken within each round, both sides measured one after the other. See `docs/internals/benchmarks.md`.",
        "",
    ]
    for section in dict.fromkeys(r.section for r in results):
        rows = [r for r in results if r.section == section]
        busy = max(r.busy_cores for r in rows)
        lines += [f"## {section}", ""]
        if busy >= QUIET_CORES:
            lines += [f"*Doubtful: others used {busy:g} cores meanwhile.*", ""]
        ours = "value" if rows[0].beside == RAW_LIMIT else "Weir"
        lines += [
            f"| what | {ours} | {rows[0].beside} | ratio | target | met |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        lines += [_line(r) for r in rows]
        lines.append("")
    return "\n".join(lines)


def _line(row: Result) -> str:
    raw = row.raw_title
    if row.raw:
        says = "" if row.raw_title == row.beside else f": {row.raw_title}"
        raw = f"{_with_spread(row.raw)} {row.unit}{says}"
    ratio = _with_spread(row.ratio) if row.ratio else ""
    return (
        f"| {row.title} | {_with_spread(row.value)} {row.unit} | {raw} | {ratio} | {row.target} | {row.verdict} |"
    )


def write(results: list[Result], facts: dict[str, Any], folder: Path, *, keep: bool = False) -> None:
    """JSON and a picture of each part that was measured, and one table of all parts that ever were.

    `keep`: groups that were not measured this time stay as they were.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = []
    for part in _PARTS:
        path = folder / f"{part.json}.json"
        rows = [r for r in results if part.holds(r)]
        if rows:
            measured = {r.group for r in rows}
            rows = [r for r in _stored(path) if keep and r.group not in measured] + rows
            path.write_text(json.dumps({"machine": facts, "rows": [asdict(r) for r in rows]}, indent=1) + "\n")
            _plot(rows, facts, folder / f"{part.picture}.png", part)
        if path.exists():
            tables.append(table(_stored(path), json.loads(path.read_text())["machine"], part.title))
    (folder / "table.md").write_text("\n".join(tables))


def _stored(path: Path) -> list[Result]:
    return [_result(row) for row in json.loads(path.read_text())["rows"]] if path.exists() else []


def _result(stored: dict[str, Any]) -> Result:
    spreads = {name: Spread(*stored[name]) if stored[name] else None for name in ("value", "raw", "ratio")}
    return Result(**(stored | spreads))


def _plot(results: list[Result], facts: dict[str, Any], path: Path, part: Part) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [
        (
            f"Throughput: share of {part.other} (longer is better)",
            [r for r in results if r.ratio and not r.lower_is_better],
        ),
        (
            f"{part.costs}: multiple of {part.other} (shorter is better)",
            [r for r in results if r.ratio and r.lower_is_better],
        ),
    ]
    panels = [(title, rows) for title, rows in panels if rows]
    if not panels:
        return
    heights = [max(2, len(rows)) for _, rows in panels]
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(11, 1.6 + 0.3 * sum(heights)), squeeze=False, height_ratios=heights
    )
    for axis, (title, rows) in zip(axes[:, 0], panels, strict=True):
        _panel(axis, title, rows)
    figure.suptitle(f"{part.title} ({facts['cores']} cores, {facts['date']})")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _panel(axis: Any, title: str, rows: list[Result]) -> None:
    ratios = [r.ratio for r in rows if r.ratio]
    names = [f"{r.group}: {r.title}" for r in rows]
    colours = ["#4878a8" if r.met is None else "#3a8a4d" if r.met else "#c0504d" for r in rows]
    positions = range(len(rows))
    errors = [[s.median - s.low for s in ratios], [s.high - s.median for s in ratios]]
    axis.barh(positions, [s.median for s in ratios], xerr=errors, color=colours, ecolor="#888888", height=0.7)
    for position, spread in zip(positions, ratios, strict=True):
        axis.text(spread.high, position, f"  {number(spread.median)}", va="center", fontsize=7)
    axis.axvline(1.0, color="#333333", linewidth=0.8, linestyle="--")
    axis.set_yticks(list(positions), names, fontsize=7)
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.set_title(title, fontsize=9)
