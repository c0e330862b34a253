"""Statements done: each gives rows, or a word on what was done."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import singledispatchmethod
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from weir.client import streams as rest
from weir.client.streams import Defined
from weir.model.errors import NotAuthorisedError, SqlError, SqlStreamExistsError, SqlStreamNotFoundError
from weir.model.sql_streams import SqlStream, StreamProgress, Wanted
from weir.model.topics import DEFAULT_NAMESPACE
from weir.spark.sql import statements as s
from weir.spark.sql.pipelines import mode_of, prepare
from weir.spark.sql.place import Place, table_name, topic_named
from weir.spark.sql.progress import told
from weir.spark.sql.tables import Tables

#: How long CREATE and RESUME wait for the runner's word: it may have to start Spark first.
_PATIENCE_S = 90.0
#: A runner that said nothing for so long is not there.
_STALE_MS = 30_000
_LOOK_S = 0.3


@dataclass(frozen=True, slots=True)
class Rows:
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    #: Whether there are more than these.
    more: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    what: str
    fields: Mapping[str, Any] = field(default_factory=dict)


class Console:
    def __init__(
        self,
        spark: Callable[[], SparkSession],
        place: Place,
        *,
        limit: int | None = None,
        start: str = "latest",
        see_runner: Callable[[], bool] = lambda: False,
    ) -> None:
        """`spark` is asked for when it is needed: it takes seconds to start. `limit`: rows at the most. `start`:
        where live queries begin. `see_runner`: see to it that the streams are run; False if others shall."""
        self._spark = spark
        self._place = place
        self._limit = limit
        self._start = start
        self._see_runner = see_runner
        self._tables: Tables | None = None

    @property
    def tables(self) -> Tables:
        if self._tables is None:
            self._tables = Tables(self._spark(), self._place)
        return self._tables

    @singledispatchmethod
    def do(self, statement: s.Statement) -> Rows | Done:
        raise SqlError(f"{type(statement).__name__} is not for here")

    # --- tables -------------------------------------------------------------------------------------------------

    @do.register
    def _select(self, statement: s.Select) -> Rows | Done:
        with _spoken():
            if statement.explain:
                frame = self.tables.frame(statement.query, streaming=False)
                frame.createOrReplaceTempView("weir_explained")
                frame = self._spark().sql(f"{statement.explain} SELECT * FROM weir_explained")
            else:
                frame = self.tables.frame(statement.query, streaming=False)
            return self._rows(frame)

    @do.register
    def _other(self, statement: s.Other) -> Rows | Done:
        with _spoken():
            found = self._rows(self._spark().sql(statement.text))
        return found if found.columns else Done("done")

    @do.register
    def _show_tables(self, statement: s.ShowTables) -> Rows | Done:
        return Rows(("table",), [(name,) for name in self.tables.names()])

    @do.register
    def _describe_table(self, statement: s.DescribeTable) -> Rows | Done:
        frame = self.tables.table(topic_named(statement.name), headers=True)
        return Rows(("column", "type"), [(one.name, one.dataType.simpleString()) for one in frame.schema])

    def _rows(self, frame: DataFrame) -> Rows:
        limit = self._limit
        found = (frame if limit is None else frame.limit(limit + 1)).collect()
        more = limit is not None and len(found) > limit
        return Rows(frame.columns, [tuple(row) for row in found[:limit]], more)

    # --- live rows ----------------------------------------------------------------------------------------------

    def live(self, statement: s.SelectStream) -> Generator[Rows]:
        """Rows as they come, until the limit is reached or this is closed."""
        batches: SimpleQueue[Rows] = SimpleQueue()
        with _spoken(), TemporaryDirectory(prefix="weir-sql-") as folder:
            query = statement.query
            frame = self.tables.frame(query, streaming=True, options={"startingOffsets": self._start})
            columns = frame.columns
            running = (
                frame.writeStream.outputMode(mode_of(query, {}))
                .option("checkpointLocation", folder)
                .trigger(processingTime="200 milliseconds")
                .foreachBatch(
                    lambda rows, _epoch: batches.put(Rows(columns, [tuple(row) for row in rows.collect()]))
                )
                .start()
            )
            left = self._limit
            try:
                while left is None or left > 0:
                    found = _next(batches)
                    if found is not None and found.rows:
                        yield Rows(columns, found.rows[:left])
                        left = None if left is None else left - len(found.rows)
                    elif found is None and not running.isActive:
                        raise running.exception() or SqlError("the query ended")
            finally:
                running.stop()

    # --- streams ------------------------------------------------------------------------------------------------

    @do.register
    def _create(self, statement: s.CreateStream) -> Rows | Done:
        name, access = topic_named(statement.name), self._place.access
        shown = table_name(name)
        if rest.find_stream(access, name) is not None:
            if statement.if_not_exists:
                return Done(f"there is a stream {shown} already")
            raise SqlStreamExistsError(f"there is a stream {shown} already")
        with _spoken():
            sources = list(self.tables.topics(statement.query).values())
            prepare(self.tables, self._place, name, statement.query, statement.options)
        rest.put_stream(
            access,
            name,
            sql=statement.query.text,
            sources=sources,
            options=statement.options,
            wanted=Wanted.RUNNING,
        )
        return self._started(s.DescribeStream(statement.name), "created")

    @do.register
    def _show_streams(self, statement: s.ShowStreams) -> Rows | Done:
        access = self._place.access
        try:
            found = rest.all_streams(access)
        except NotAuthorisedError:
            found = rest.streams_of(access, DEFAULT_NAMESPACE)
        columns = ("stream", "state", "rows/s", "rows", "lag", "state rows", "last batch", "error")
        return Rows(columns, [_line(one, self._state(one)) for one in found])

    @do.register
    def _describe(self, statement: s.DescribeStream) -> Rows | Done:
        found = rest.get_stream(self._place.access, topic_named(statement.name))
        stream, progress = found.stream, found.progress or StreamProgress("", "")
        return Rows(
            ("what", "value"),
            [
                ("stream", table_name(stream.name)),
                ("state", self._state(found)),
                ("query", stream.sql),
                ("reads", ", ".join(table_name(source) for source in stream.sources)),
                ("options", ", ".join(f"{name}={value}" for name, value in stream.options.items())),
                ("rows per second", progress.rows_per_second),
                ("rows", progress.rows),
                ("lag", progress.lag),
                ("state rows", progress.state_rows),
                ("state bytes", progress.state_bytes),
                ("last batch", progress.batch),
                ("last batch ms", progress.batch_ms),
                ("error", progress.error),
                ("defined by", stream.role),
            ],
        )

    @do.register
    def _pause(self, statement: s.PauseStream) -> Rows | Done:
        stream = self._want(statement.name, Wanted.PAUSED)
        return Done(f"stream {table_name(stream.name)} pauses")

    @do.register
    def _resume(self, statement: s.ResumeStream) -> Rows | Done:
        self._want(statement.name, Wanted.RUNNING)
        return self._started(s.DescribeStream(statement.name), "resumed")

    @do.register
    def _drop(self, statement: s.DropStream) -> Rows | Done:
        name = topic_named(statement.name)
        if rest.find_stream(self._place.access, name) is None:
            if statement.if_exists:
                return Done(f"there is no stream {table_name(name)}")
            raise SqlStreamNotFoundError(f"there is no stream {table_name(name)}")
        rest.drop_stream(self._place.access, name)
        return Done(f"stream {table_name(name)} dropped; its topic stays")

    def _want(self, parts: s.Name, wanted: Wanted) -> SqlStream:
        access, name = self._place.access, topic_named(parts)
        stream = rest.get_stream(access, name).stream
        return rest.put_stream(
            access, name, sql=stream.sql, sources=stream.sources, options=stream.options, wanted=wanted
        ).stream

    def _started(self, about: s.DescribeStream, done: str) -> Done:
        """Wait for the runner's word, if there is a runner or one can be started."""
        name = topic_named(about.name)
        shown, deadline = table_name(name), time.monotonic() + _PATIENCE_S
        while self._see_runner() and time.monotonic() < deadline:
            progress = rest.get_stream(self._place.access, name).progress
            if progress is not None and progress.state == "failed":
                raise SqlError(f"stream {shown} is {done}, and fails: {progress.error}", hint="drop or mend it")
            if progress is not None and progress.state == "running":
                return Done(f"stream {shown} {done}; it runs", {"stream": shown})
            time.sleep(_LOOK_S)
        return Done(f"stream {shown} {done}; it runs as soon as weir streams run does", {"stream": shown})

    def _state(self, found: Defined) -> str:
        """What it does, as far as is known."""
        if found.progress is None:
            return f"{found.stream.wanted.value} (not started)"
        stale = time.time() * 1000 - found.progress.reported_ms > _STALE_MS
        if stale and found.progress.state == "running" and rest.runner(self._place.access) is None:
            return "no runner"
        return found.progress.state


def _line(found: Defined, state: str) -> tuple[Any, ...]:
    told = found.progress or StreamProgress("", "")
    name = table_name(found.stream.name)
    return (name, state, told.rows_per_second, told.rows, told.lag, told.state_rows, told.batch, told.error)


def _next(batches: "SimpleQueue[Rows]") -> Rows | None:
    try:
        return batches.get(timeout=_LOOK_S)
    except Empty:
        return None


@contextmanager
def _spoken() -> Iterator[None]:
    """What Spark has to say of a query, in a line."""
    try:
        yield
    except (PySparkException, Py4JError) as failure:
        raise SqlError(told(failure)) from None
