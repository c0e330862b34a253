"""Statements done: each gives rows, or a word on what was done."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import singledispatchmethod
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField

from weir.model.errors import SqlError
from weir.spark.sql import statements as s
from weir.spark.sql.cluster import WeirCluster, table_name, topic_named
from weir.spark.sql.insert import insert
from weir.spark.sql.pipelines import mode_of
from weir.spark.sql.progress import told
from weir.spark.sql.queries import Query, quoted
from weir.spark.sql.results import Done, Rows
from weir.spark.sql.stream_console import StreamConsole
from weir.spark.sql.tables import Tables

_LOOK_S = 0.3
#: How often the same is shown to those who watch.
_WATCH_S = 2.0


class Console:
    """A session: what Spark knows in it, and the views that were made in it."""

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        place: WeirCluster,
        *,
        limit: int | None = None,
        start: str = "latest",
        see_runner: Callable[[], bool] = lambda: False,
    ) -> None:
        """`spark` is asked for when it is needed: it takes seconds to start. `limit`: rows at the most. `start`:
        where live queries begin. `see_runner`: see to it that the streams are run; False if others shall."""
        self._start_spark = spark
        #: Whether Spark runs, and may have tables of its own.
        self._started = False
        self._limit = limit
        self._start = start
        self.tables = Tables(self._spark, place)
        self._place = place
        self._streams = StreamConsole(self.tables, place, see_runner)
        #: Their texts, by their names in small letters.
        self._views: dict[str, str] = {}

    def _spark(self) -> SparkSession:
        self._started = True
        return self._start_spark()

    @singledispatchmethod
    def do(self, statement: s.Statement) -> Rows | Done:
        """What is about streams."""
        with _spoken():
            return self._streams.do(statement)

    @do.register
    def _create_stream(self, statement: s.CreateStream) -> Rows | Done:
        """Its definition is for the runner, which knows no views."""
        with _spoken():
            return self._streams.do(replace(statement, query=statement.query.where(self._views, safe=True)))

    # --- tables -------------------------------------------------------------------------------------------------

    @do.register
    def _select(self, statement: s.Select) -> Rows | Done:
        query = statement.query.where(self._views)
        with _spoken():
            frame = self.tables.frame(query, streaming=False)
            if statement.explain:
                frame.createOrReplaceTempView("weir_explained")
                frame = self._spark().sql(f"{statement.explain} SELECT * FROM weir_explained")
            return self._rows(frame)

    @do.register
    def _insert(self, statement: s.Insert) -> Rows | Done:
        query = statement.query.where(self._views)
        with _spoken():
            if self.tables.is_sparks(statement.name):
                return self._other(s.Other(statement.head, query))
            return insert(self.tables, self._place, statement, query)

    @do.register
    def _other(self, statement: s.Other) -> Rows | Done:
        with _spoken():
            if statement.query is None:
                found = self._rows(self._spark().sql(statement.text))
            else:
                with self.tables.reading(_plain(statement.query.where(self._views))) as text:
                    found = self._rows(self._spark().sql(statement.text + text))
        return found if found.columns else Done("done")

    @do.register
    def _show_tables(self, statement: s.ShowTables) -> Rows | Done:
        wanted = topic_named((*statement.namespace, "any")).namespace if statement.namespace else None
        topics = [one for one in self.tables.names() if wanted is None or one.namespace == wanted]
        views = [] if wanted else [quoted(name).strip("`") for name in self._views]
        named = [(table_name(one), one.local) for one in topics] + [(name, name) for name in views]
        return Rows(("table",), [(name,) for name, local in named if fnmatchcase(local, statement.like)])

    @do.register
    def _describe_table(self, statement: s.DescribeTable) -> Rows | Done:
        with _spoken():
            columns = self._columns(statement.name)
        return Rows(("column", "type"), [(one.name, one.dataType.simpleString()) for one in columns])

    def _columns(self, name: s.Name) -> list[StructField]:
        if len(name) == 1 and name[0].lower() in self._views:
            return list(self.tables.frame(Query.of(self._views[name[0].lower()]), streaming=False).schema)
        topic = topic_named(name)
        try:
            self.tables.check_exists(topic)
        except SqlError:
            if not self._started or not self.tables.is_sparks(name):
                raise
            return list(self._spark().table(quoted(name[0])).schema)
        return self.tables.columns(topic)

    def _rows(self, frame: DataFrame) -> Rows:
        limit = self._limit
        found = (frame if limit is None else frame.limit(limit + 1)).collect()
        more = limit is not None and len(found) > limit
        return Rows(frame.columns, [tuple(row) for row in found[:limit]], more)

    # --- views --------------------------------------------------------------------------------------------------

    @do.register
    def _create_view(self, statement: s.CreateView) -> Rows | Done:
        (name,) = statement.name
        if name.lower() in self._views and not statement.or_replace:
            if statement.if_not_exists:
                return Done(f"there is a view {name} already")
            raise SqlError(f"there is a view {name} already", hint="write CREATE OR REPLACE VIEW")
        query = statement.query.where(self._views)
        text = query.text
        if statement.columns:
            columns = ", ".join(map(quoted, statement.columns))
            text = f"SELECT * FROM ({text}) AS {quoted(name)}({columns})"
        with _spoken():
            self.tables.frame(Query.of(text), streaming=False)  # what is wrong with it is said now
        self._views[name.lower()] = text
        return Done(f"view {name} created, for this session", {"view": name})

    @do.register
    def _drop_view(self, statement: s.DropView) -> Rows | Done:
        shown = ".".join(statement.name)
        if self._views.pop(shown.lower(), None) is not None:
            return Done(f"view {shown} dropped")
        if statement.if_exists:
            return Done(f"there is no view {shown}")
        raise SqlError(f"there is no view {shown}", hint="views end with the session that made them")

    # --- live rows ----------------------------------------------------------------------------------------------

    def live(self, statement: s.SelectStream) -> Generator[Rows]:
        """Rows as they come, until the limit is reached or this is closed."""
        batches: SimpleQueue[Rows] = SimpleQueue()
        with _spoken(), TemporaryDirectory(prefix="weir-sql-", ignore_cleanup_errors=True) as folder:
            query = statement.query.where(self._views)
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

    def watch(self, statement: s.Watch, *, every_s: float = _WATCH_S) -> Generator[Rows]:
        """The same again and again, until this is closed."""
        while True:
            found = self.do(statement.what)
            if isinstance(found, Rows):
                yield found
            time.sleep(every_s)


def _plain(query: Query) -> Query:
    """A query that is all without duplicates, as one within another: Spark gets a text."""
    return query if query.distinct is None else Query.of(f"SELECT * FROM ({query.text}) AS rows")


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
    except (PySparkException, Py4JError, ValueError, OverflowError) as failure:
        raise SqlError(told(failure)) from None
