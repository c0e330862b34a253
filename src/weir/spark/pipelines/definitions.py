"""What the files of a pipeline define: datasets, flows, by Spark's own decorators (`pyspark.pipelines`) or SQL."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from weir.spark.pipelines.graph import Dataset, Kind, SqlElement, elements
from weir.spark.pipelines.spec import Spec


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
