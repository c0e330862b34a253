"""Statements done: each gives rows, or a word on what was done.

Statements about streams, done: definitions are put into Weir's metadata, and their runner does the rest.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import tzinfo
from fnmatch import fnmatchcase
from functools import singledispatchmethod
from queue import Empty, Full, Queue
from tempfile import TemporaryDirectory
from threading import Event

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField

from weir.client import streams as rest
from weir.client.streams import COLUMNS, FIELDS, described, listed
from weir.model.definitions import SqlStream, Wanted, table_name
from weir.model.errors import SqlError, SqlStreamExistsError, SqlStreamNotFoundError, WeirError
from weir.model.topics import TopicName
from weir.spark.sql import statements as s
from weir.spark.sql.checking import Checker, view_text
from weir.spark.sql.insert import insert
from weir.spark.sql.results import Done, Rows, with_zones, zone_of
from weir.spark.sql.stream_query import mode_of, prepare, told
from weir.spark.tables.names import WeirCluster, topic_named
from weir.spark.tables.query import TECHNICAL, Query, quoted
from weir.spark.tables.topic_tables import Tables

#: How long CREATE and RESUME wait for the runner's word: it may have to start Spark first.
_PATIENCE_S = 90.0
_LOOK_S = 0.3


class StreamConsole:
    def __init__(self, tables: Tables, place: WeirCluster, see_runner: Callable[[], bool]) -> None:
        """`see_runner`: see to it that the streams are run; False if others shall."""
        self._tables = tables
        self._place = place
        self._see_runner = see_runner

    @singledispatchmethod
    def do(self, statement: s.Statement) -> Rows | Done:
        raise SqlError(f"{type(statement).__name__} is not for here")

    @do.register
    def _create(self, statement: s.CreateStream) -> Rows | Done:
        name, access = topic_named(statement.name), self._place.access
        shown = table_name(name)
        if rest.find_stream(access, name) is not None:
            if statement.if_not_exists:
                return Done(f"there is a stream {shown} already", {"stream": shown})
            raise SqlStreamExistsError(f"there is a stream {shown} already")
        topics = self._tables.topics(statement.query)
        own = [".".join(parts) for parts in statement.query.names if parts not in topics]
        if own:
            raise SqlError(
                f"a stream reads topics, and {own[0]} is a table of this session", hint="make it a topic"
            )
        sources = list(topics.values())
        prepare(self._tables, self._place, name, statement.query, statement.options)
        self._see_runner()  # it starts meanwhile; and if it cannot, nothing is defined
        rest.put_stream(
            access,
            name,
            sql=statement.query.text,
            sources=sources,
            options=statement.options,
            wanted=Wanted.RUNNING,
        )
        return self._started(name, "created")

    @do.register
    def _show(self, statement: s.ShowStreams) -> Rows | Done:
        return Rows(COLUMNS, listed(self._place.access, table_name))

    @do.register
    def _describe(self, statement: s.DescribeStream) -> Rows | Done:
        found = rest.get_stream(self._place.access, topic_named(statement.name))
        return Rows(FIELDS, described(self._place.access, found, table_name))

    @do.register
    def _pause(self, statement: s.PauseStream) -> Rows | Done:
        shown = table_name(self._want(statement.name, Wanted.PAUSED).name)
        return Done(f"stream {shown} pauses", {"stream": shown})

    @do.register
    def _resume(self, statement: s.ResumeStream) -> Rows | Done:
        return self._started(self._want(statement.name, Wanted.RUNNING).name, "resumed")

    @do.register
    def _drop(self, statement: s.DropStream) -> Rows | Done:
        name = topic_named(statement.name)
        shown = table_name(name)
        if rest.find_stream(self._place.access, name) is None:
            if statement.if_exists:
                return Done(f"there is no stream {shown}", {"stream": shown})
            raise SqlStreamNotFoundError(f"there is no stream {shown}")
        rest.drop_stream(self._place.access, name)
        return Done(f"stream {shown} dropped; its topic stays", {"stream": shown})

    def _want(self, parts: s.Name, wanted: Wanted) -> SqlStream:
        access, name = self._place.access, topic_named(parts)
        stream = rest.get_stream(access, name).stream
        return rest.put_stream(
            access, name, sql=stream.sql, sources=stream.sources, options=stream.options, wanted=wanted
        ).stream

    def _started(self, name: TopicName, done: str) -> Done:
        """Wait until the worker reports, if there is a worker or one can be started; say which worker it is."""
        access, shown, deadline = self._place.access, table_name(name), time.monotonic() + _PATIENCE_S
        running = False
        while not running and self._see_runner() and time.monotonic() < deadline:
            progress = rest.get_stream(access, name).progress
            if progress is not None and progress.state == "failed" and progress.next_try_ms:
                raise SqlError(f"stream {shown} is {done}, and fails: {progress.error}", hint="drop or mend it")
            running = progress is not None and progress.state == "running"
            if not running:
                time.sleep(_LOOK_S)
        worker = rest.runner(access).where
        if worker is None:
            text = f"stream {shown} {done}; no worker runs it: start one by weir up --streams, or weir streams run"
        elif not running:
            text = (
                f"stream {shown} {done}; its worker is {worker}: weir streams describe {shown} shows when it runs"
            )
        else:
            text = f"stream {shown} {done}; it runs in {worker}"
        return Done(text, {"stream": shown, "worker": worker or "", "state": "running" if running else "created"})


#: Of a live query: messages that are read at once, and results that wait for whoever takes them.
_AT_ONCE, _WAITING = 100_000, 2
#: What Spark says of a result that does not fit into its driver; and what can be done.
_TOO_LARGE = ("java.lang.OutOfMemoryError", "spark.driver.maxResultSize")
_LESS = "write LIMIT, or INSERT OVERWRITE DIRECTORY '/tmp/out' USING parquet SELECT ..."
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
                plan = self._rows(self._spark().sql(f"{statement.explain} SELECT * FROM weir_explained"))
                return Rows(plan.columns, [(line,) for (text,) in plan.rows for line in text.rstrip().split("\n")])
            return self._rows(_visible(frame, query))

    @do.register
    def _insert(self, statement: s.Insert) -> Rows | Done:
        query = statement.query.where(self._views)
        with _spoken():
            if self.tables.is_sparks(statement.name):
                return self._other(s.Other(statement.head, query))
            return insert(self.tables, self._place, statement, query)

    @do.register
    def _other(self, statement: s.Other) -> Rows | Done:
        self.tables.check_free(statement.makes)
        with _spoken():
            if statement.query is None:
                with self._no_topics():
                    found = self._rows(self._spark().sql(statement.text))
            else:
                query = _plain(statement.query.where(self._views))
                with self.tables.reading(self._without_technical(query)) as text:
                    found = self._rows(self._spark().sql(statement.text + text))
        return found if found.columns else Done("done")

    @contextmanager
    def _no_topics(self) -> Iterator[None]:
        """Spark's own statements know nothing of topics, and would say that there is no such table."""
        try:
            yield
        except PySparkException as failure:
            named = (failure.getMessageParameters() or {}).get("relationName", "").split(".")[-1].strip("`")
            if named and named in {one.local for one in self.tables.names()}:
                raise SqlError(
                    f"{named} is a topic, and this statement is for tables of Spark's own",
                    hint="SQL reads topics, and adds to them by INSERT; `weir topics` does more",
                ) from failure
            raise

    @do.register
    def _show_tables(self, statement: s.ShowTables) -> Rows | Done:
        wanted = topic_named((*statement.namespace, "any")).namespace if statement.namespace else None
        topics = [one for one in self.tables.names() if wanted is None or one.namespace == wanted]
        views = [] if wanted else list(map(_short, self._views))
        named = [(table_name(one), one.local) for one in topics] + [(name, name) for name in views]
        return Rows(("table",), [(name,) for name, local in named if fnmatchcase(local, statement.like)])

    @do.register
    def _describe_table(self, statement: s.DescribeTable) -> Rows | Done:
        with _spoken():
            columns = self._columns(statement.name)
        lines = [(one.name, one.dataType.simpleString(), _seen(one.name)) for one in columns]
        return Rows(("column", "type", "shown by *"), lines)

    def columns_of(self, name: s.Name) -> list[StructField]:
        """What a table or view has, technical columns among it."""
        with _spoken():
            return self._columns(name)

    def table_names(self) -> list[str]:
        """Topics and views, as statements name them."""
        return [*(table_name(one) for one in self.tables.names()), *map(_short, self._views)]

    def check(self, statements: Sequence[tuple[str, s.Statement]]) -> None:
        """WeirError, with what the statement is called, if one of several cannot be done, as far as that can be
        known before; nothing is done."""
        checker = Checker(self.tables, self._place, self._views)
        for called, statement in statements:
            try:
                with _spoken():
                    checker.check(statement)
            except WeirError as wrong:
                wrong.what = f"{called}: {wrong.what}; nothing was done"
                raise

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
        zoned = with_zones(frame.schema, self._zone())
        return Rows(frame.columns, [zoned(row) for row in found[:limit]], more)

    def _zone(self) -> tzinfo | None:
        return zone_of(str(self._spark().conf.get("spark.sql.session.timeZone") or ""))

    def _without_technical(self, query: Query) -> Query:
        """For statements of Spark's that end with a query: what they write is what it would show."""
        if query.star is None:
            return query
        columns = self.tables.frame(query, streaming=False).columns
        kept = query.visible(columns)
        if len(kept) == len(columns):
            return query
        names = [f"c{at}" for at in range(len(columns))]
        chosen = ", ".join(f"{names[at]} AS {quoted(columns[at])}" for at in kept)
        return Query.of(f"SELECT {chosen} FROM ({query.text}) AS rows({', '.join(names)})")

    # --- replays ------------------------------------------------------------------------------------------------

    @do.register(s.ReplayMessages)
    @do.register(s.SelectReplay)
    @do.register(s.CountReplay)
    @do.register(s.ShowReplays)
    def _replay(self, statement: s.ReplayMessages | s.SelectReplay | s.CountReplay | s.ShowReplays) -> Rows | Done:
        from weir.spark.sql.replay_statements import ReplayConsole

        with _spoken():
            return ReplayConsole(self.tables, self._place).do(statement)

    # --- views --------------------------------------------------------------------------------------------------

    @do.register
    def _create_view(self, statement: s.CreateView) -> Rows | Done:
        (name,) = statement.name
        if name.lower() in self._views and not statement.or_replace:
            if statement.if_not_exists:
                return Done(f"there is a view {name} already")
            raise SqlError(f"there is a view {name} already", hint="write CREATE OR REPLACE VIEW")
        text = view_text(statement, self._views)
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

    def live(self, statement: s.SelectStream, *, stopped: Callable[[], bool] = lambda: False) -> Generator[Rows]:
        """Rows as they come, until the limit is reached, this is closed, or it is stopped."""
        batches: Queue[Rows] = Queue(_WAITING)
        over = Event()
        with _spoken(), TemporaryDirectory(prefix="weir-sql-", ignore_cleanup_errors=True) as folder:
            query = statement.query.where(self._views)
            read = {"startingOffsets": self._start, "maxOffsetsPerTrigger": str(_AT_ONCE)}
            frame = self.tables.frame(query, streaming=True, options=read, infer=True)
            frame = _visible(frame, query)
            columns, zoned = frame.columns, with_zones(frame.schema, self._zone())
            running = (
                frame.writeStream.outputMode(mode_of(query, {}))
                .option("checkpointLocation", folder)
                .trigger(processingTime="200 milliseconds")
                .foreachBatch(
                    lambda rows, _: _put(batches, Rows(columns, [zoned(row) for row in rows.collect()]), over)
                )
                .start()
            )
            left = self._limit
            try:
                while (left is None or left > 0) and not stopped():
                    found = _next(batches)
                    if found is not None and found.rows:
                        yield Rows(columns, found.rows[:left])
                        left = None if left is None else left - len(found.rows)
                    elif found is None and not running.isActive:
                        raise running.exception() or SqlError("the query ended")
            finally:
                over.set()
                running.stop()

    def watch(
        self, statement: s.Watch, *, every_s: float = _WATCH_S, stopped: Callable[[], bool] = lambda: False
    ) -> Generator[Rows]:
        """The same again and again, until this is closed, or it is stopped."""
        again = time.monotonic()
        while not stopped():
            if time.monotonic() >= again:
                again = time.monotonic() + every_s
                found = self.do(statement.what)
                if isinstance(found, Rows):
                    yield found
            time.sleep(_LOOK_S)


def _visible(frame: DataFrame, query: Query) -> DataFrame:
    """Without the technical columns that nobody named."""
    kept = query.visible(frame.columns)
    if len(kept) == len(frame.columns):
        return frame
    names = [f"c{at}" for at in range(len(frame.columns))]
    renamed = frame.toDF(*names)
    return renamed.select(*(renamed[names[at]].alias(frame.columns[at]) for at in kept))


def _seen(name: str) -> str:
    return "no, by its name" if name in TECHNICAL else "yes"


def _short(view: str) -> str:
    return quoted(view).strip("`")


def _plain(query: Query) -> Query:
    """A query that is all without duplicates, as one within another: Spark gets a text."""
    return query if query.distinct is None else Query.of(f"SELECT * FROM ({query.text}) AS rows")


def _put(batches: "Queue[Rows]", found: Rows, over: Event) -> None:
    """Wait until somebody takes them, or nobody will."""
    while not over.is_set():
        with suppress(Full):
            batches.put(found, timeout=_LOOK_S)
            return


def _next(batches: "Queue[Rows]") -> Rows | None:
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
        if any(word in str(failure) for word in _TOO_LARGE):
            raise SqlError(
                "there is more in the result than Spark's driver has memory for", hint=_LESS
            ) from failure
        raise SqlError(_away(failure) or told(failure)) from failure


def _away(failure: BaseException) -> str | None:
    """That a bucket does not answer, if that is why a file of it could not be read."""
    if "webhdfs://" not in str(failure):
        return None
    from weir.spark.lake.webhdfs import gateway

    trouble = gateway().trouble()
    return None if trouble is None else trouble.what
