"""Statements about streams, done: definitions are put into Weir's metadata, and their runner does the rest."""

import time
from collections.abc import Callable
from datetime import datetime
from functools import singledispatchmethod
from typing import Any

from weir.client import streams as rest
from weir.client.streams import Defined
from weir.model.errors import SqlError, SqlStreamExistsError, SqlStreamNotFoundError
from weir.model.sql_streams import SqlStream, StreamProgress, Wanted
from weir.model.topics import TopicName
from weir.spark.sql import statements as s
from weir.spark.sql.cluster import WeirCluster, table_name, topic_named
from weir.spark.sql.pipelines import prepare
from weir.spark.sql.results import Done, Rows
from weir.spark.sql.tables import Tables

#: How long CREATE and RESUME wait for the runner's word: it may have to start Spark first.
_PATIENCE_S = 90.0
#: A runner that said nothing for so long is not there.
_STALE_MS = 30_000
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
        found = rest.all_streams(self._place.access)
        columns: tuple[str, ...] = ("stream", "state", "rows/s", "rows", "lag", "state rows", "state bytes")
        columns += ("last batch", "failures", "next try", "error")
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
                ("failures in a row", progress.failures),
                ("last failure", _moment(progress.failed_ms)),
                ("next try", _next_try(progress)),
                ("error", progress.error),
                ("defined by", stream.role),
            ],
        )

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
        """Wait for the runner's word, if there is a runner or one can be started."""
        shown, deadline = table_name(name), time.monotonic() + _PATIENCE_S
        while self._see_runner() and time.monotonic() < deadline:
            progress = rest.get_stream(self._place.access, name).progress
            if progress is not None and progress.state == "failed" and progress.next_try_ms:
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
        if stale and rest.runner(self._place.access).where is None:
            return "paused" if found.stream.wanted is Wanted.PAUSED else "no runner"
        return found.progress.state


def _line(found: Defined, state: str) -> tuple[Any, ...]:
    told = found.progress or StreamProgress("", "")
    return (
        table_name(found.stream.name),
        state,
        told.rows_per_second,
        told.rows,
        told.lag,
        told.state_rows,
        told.state_bytes,
        told.batch,
        told.failures,
        _next_try(told),
        told.error,
    )


def _next_try(told: StreamProgress) -> str:
    """Of a stream that has failed: when it is tried again."""
    if told.state != "failed":
        return ""
    return _moment(told.next_try_ms) or "now"


def _moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S}" if at_ms else ""
