"""Statements about streams, done: definitions are put into Weir's metadata, and their runner does the rest."""

import time
from collections.abc import Callable
from functools import singledispatchmethod

from weir.client import streams as rest
from weir.client.stream_rows import COLUMNS, FIELDS, described, listed
from weir.model.errors import SqlError, SqlStreamExistsError, SqlStreamNotFoundError
from weir.model.sql_streams import SqlStream, Wanted
from weir.model.topics import TopicName
from weir.spark.sql import statements as s
from weir.spark.sql.cluster import WeirCluster, table_name, topic_named
from weir.spark.sql.pipelines import prepare
from weir.spark.sql.results import Done, Rows
from weir.spark.sql.tables import Tables

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
