"""The dataflow graph: what there is, what each flow reads and writes, and in which order it can be seen.

What the files of a pipeline define: datasets, flows, by Spark's own decorators (`pyspark.pipelines`) or SQL.
"""

import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from traceback import extract_tb
from typing import Any

from pyspark.pipelines.flow import AutoCdcFlow, Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
from pyspark.pipelines.output import MaterializedView, Output, TemporaryView
from pyspark.pipelines.output import Sink as SparkSink
from pyspark.pipelines.source_code_location import SourceCodeLocation
from pyspark.sql import DataFrame, SparkSession

from weir.model.errors import ConfigError, WeirError
from weir.spark.pipelines.spec import Spec


class Kind(StrEnum):
    SOURCE = "topic, read"
    SINK = "topic, written"
    STREAMING_TABLE = "streaming table"
    MATERIALIZED_VIEW = "materialized view"
    VIEW = "view"
    #: Read by a flow, and none of the pipeline's own: a table of Spark's, or files.
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True)
class Dataset:
    name: str
    kind: Kind
    #: Of topics, as Kafka's clients call them.
    topic: str | None = None
    #: Columns, and their types as Spark writes them; empty until they are known.
    columns: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class FlowEdge:
    """A flow, and what it reads."""

    name: str
    target: str
    inputs: tuple[str, ...]


@dataclass
class Graph:
    datasets: dict[str, Dataset] = field(default_factory=dict)
    flows: list[FlowEdge] = field(default_factory=list)

    def layers(self) -> list[list[str]]:
        """Datasets by how many flows lie before them; ConfigError names a circle."""
        before: dict[str, set[str]] = {name: set() for name in self.datasets}
        for flow in self.flows:
            before.setdefault(flow.target, set()).update(flow.inputs)
        depth: dict[str, int] = {}
        left = dict.fromkeys(before)
        while left:
            ready = [name for name in left if all(one in depth for one in before[name])]
            if not ready:
                raise ConfigError(
                    f"{' and '.join(sorted(left)[:3])} depend on themselves", hint="break the circle"
                )
            for name in ready:
                depth[name] = max((depth[one] + 1 for one in before[name]), default=0)
            for name in ready:
                del left[name]
        found: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
        for name, at in depth.items():
            found[at].append(name)
        return found

    def unused(self) -> list[str]:
        """Topics of the file that no flow reads or writes."""
        used = {name for flow in self.flows for name in (*flow.inputs, flow.target)}
        topics = (Kind.SOURCE, Kind.SINK)
        return [one.name for one in self.datasets.values() if one.kind in topics and one.name not in used]


# --- SQL --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SqlElement:
    """One statement of a file. `query` is empty where a table is made that flows fill later."""

    kind: Kind | None
    name: str
    query: str
    text: str
    #: Of a flow: what it writes.
    target: str = ""
    #: Of the file, where it begins.
    line: int = 1


_NAME = r"(?P<name>(?:`[^`]+`|[\w.])+)"
_CREATE = re.compile(
    rf"CREATE\s+(?:OR\s+\w+\s+)?(?P<what>STREAMING\s+TABLE|MATERIALIZED\s+VIEW|(?:TEMPORARY\s+|TEMP\s+)?VIEW|FLOW)"
    rf"\s+(?:IF\s+NOT\s+EXISTS\s+)?{_NAME}",
    re.IGNORECASE,
)
_INSERT = re.compile(
    r"\bAS\s+INSERT\s+(?:INTO|ONCE\s+INTO)\s+(?P<target>(?:`[^`]+`|[\w.])+)\s+(?:BY\s+NAME\s+)?", re.IGNORECASE
)
_AS = re.compile(r"\bAS\b\s*(?=\(*\s*(?:SELECT|WITH|FROM|VALUES|TABLE)\b)", re.IGNORECASE)
_KINDS = {"STREAMING": Kind.STREAMING_TABLE, "MATERIALIZED": Kind.MATERIALIZED_VIEW}


def elements(text: str) -> list[SqlElement]:
    """The statements of a file; ConfigError if one defines nothing that a pipeline has."""
    found = []
    for line, statement in statements(text):
        created = _CREATE.match(statement)
        if created is None:
            if re.match(r"(?:SET|USE)\b", statement, re.IGNORECASE):
                found.append(SqlElement(None, "", "", statement, line=line))
                continue
            raise ConfigError(
                f"line {line}: {' '.join(statement.split())[:60]!r} defines nothing",
                hint="write CREATE STREAMING TABLE, MATERIALIZED VIEW, TEMPORARY VIEW or FLOW",
            )
        name, word = unquoted(created["name"]), created["what"].split()[0].upper()
        rest = statement[created.end() :]
        if word == "FLOW":
            into = _INSERT.search(rest)
            if into is None:
                raise ConfigError(
                    f"line {line}: flow {name} writes nothing",
                    hint="write AS INSERT INTO target BY NAME SELECT ...",
                )
            query, target = rest[into.end() :].strip(), unquoted(into["target"])
            found.append(SqlElement(None, name, query, statement, target, line))
            continue
        begin = _AS.search(rest)
        query = "" if begin is None else rest[begin.end() :].strip()
        kind = _KINDS.get(word, Kind.VIEW)
        found.append(SqlElement(kind, name, query, statement, name if query else "", line))
    return found


def statements(text: str) -> Iterator[tuple[int, str]]:
    """Cut at semicolons that are in no string, name or comment, each with the line that it begins at. Comments are
    left out, but for those that are hints for Spark."""
    part: list[str] = []
    line = first = 1
    pieces = r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/|;|[^'\"`;/-]+|."
    for piece in re.findall(pieces, text, re.DOTALL):
        if piece == ";":
            if "".join(part).strip():
                yield first, "".join(part).strip()
            part = []
        elif piece.startswith(("--", "/*")) and not piece.startswith("/*+"):
            part.append(" ")
        else:
            if not "".join(part).strip():
                first = line + piece[: len(piece) - len(piece.lstrip())].count("\n")
            part.append(piece)
        line += piece.count("\n")
    if "".join(part).strip():
        yield first, "".join(part).strip()


def unquoted(name: str) -> str:
    return name.replace("`", "")


def inputs_of(reads: Iterable[str], known: Mapping[str, Dataset]) -> tuple[str, ...]:
    """Names that a plan reads, as the graph's: `spark_catalog.default.big` is `big`."""
    found: dict[str, None] = {}
    for name in reads:
        plain = unquoted(name)
        last = plain.rpartition(".")[2]
        found[plain if plain in known else last if last in known else plain] = None
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Definition:
    """A flow: a function that gives a frame, or one that merges changes, of which only the names are known."""

    name: str
    target: str
    make: Callable[[], DataFrame] | None
    source: str = ""
    flow: Flow | AutoCdcFlow | None = None
    sql: SqlElement | None = None
    #: The file and the line.
    where: str = ""


@dataclass
class Definitions(GraphElementRegistry):
    """Everything that was defined, in its order."""

    spark: SparkSession
    datasets: dict[str, Dataset] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
    flows: list[Definition] = field(default_factory=list)
    #: Files of SQL, and what is in them.
    sql: list[tuple[Path, list[SqlElement]]] = field(default_factory=list)

    def register_output(self, output: Output) -> None:
        self.outputs.append(output)
        topic = None
        if isinstance(output, SparkSink):
            kind = Kind.SINK
            topic = output.options.get("topic") if output.format in ("weir", "kafka") else None
        elif isinstance(output, TemporaryView):
            kind = Kind.VIEW
        else:
            kind = Kind.MATERIALIZED_VIEW if isinstance(output, MaterializedView) else Kind.STREAMING_TABLE
        self._add(Dataset(output.name, kind, topic))

    def register_flow(self, flow: Flow) -> None:
        self.flows.append(
            Definition(flow.name, flow.target, flow.func, flow=flow, where=_shown(flow.source_code_location))
        )

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        where = _shown(flow.source_code_location)
        self.flows.append(
            Definition(flow.name or flow.target, flow.target, None, flow.source, flow=flow, where=where)
        )

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        found = elements(sql_text)
        self.sql.append((file_path, found))
        for one in found:
            if one.kind is not None:
                self._add(Dataset(one.name, one.kind))
            if one.query:
                where = f"{file_path.name}, line {one.line}"
                self.flows.append(Definition(one.name, one.target, self._query(one.query), sql=one, where=where))

    def _query(self, text: str) -> Callable[[], DataFrame]:
        return lambda: self.spark.sql(text)

    def _add(self, dataset: Dataset) -> None:
        if dataset.name in self.datasets:
            raise ConfigError(f"{dataset.name} is defined twice", hint="give one of them another name")
        self.datasets[dataset.name] = dataset


def read(spec: Spec, spark: SparkSession) -> Definitions:
    """ConfigError names the file that cannot be read."""
    found = Definitions(spark)
    with _within(spec.folder), graph_element_registration_context(found):
        for file in spec.files():
            try:
                if file.suffix == ".sql":
                    found.register_sql(file.read_text(encoding="utf-8"), file.relative_to(spec.folder))
                else:
                    _import(file, spark)
            except WeirError as bad:
                raise ConfigError(f"{file.name}: {bad.what}", hint=bad.hint) from None
            except Exception as bad:
                line = line_of(bad, str(file))
                at = f"{file.name}, line {line}" if line else file.name
                raise ConfigError(f"{at} cannot be read: {type(bad).__name__}: {bad}") from bad
    names = {*found.datasets, *spec.sinks}
    for one in found.flows:
        if one.target not in names:
            raise ConfigError(
                f"flow {one.name} writes {one.target}, which is nothing ({one.where})",
                hint="define it, or add [sinks.NAME]",
            )
    return found


def _import(file: Path, spark: SparkSession) -> None:
    """As Spark's own command does it: with `spark` as a name that is there."""
    about = importlib.util.spec_from_file_location(file.stem, str(file))
    if about is None or about.loader is None:
        raise ConfigError("it is no module")
    module: Any = importlib.util.module_from_spec(about)
    module.__dict__["spark"] = spark
    about.loader.exec_module(module)


@contextmanager
def _within(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def line_of(failure: BaseException, file: str) -> int:
    """The line of the file where it happened, or from where it was called; 0 if it has nothing to do with it."""
    if isinstance(failure, SyntaxError) and failure.filename == file:
        return failure.lineno or 0
    return next(
        (one.lineno or 0 for one in reversed(extract_tb(failure.__traceback__)) if one.filename == file), 0
    )


def _shown(place: SourceCodeLocation) -> str:
    return f"{Path(place.filename).name}, line {place.line_number}"


def here(file: str = "weir-pipeline.toml") -> SourceCodeLocation:
    """Where what the file of the pipeline defines is defined."""
    return SourceCodeLocation(filename=file, line_number=1)
