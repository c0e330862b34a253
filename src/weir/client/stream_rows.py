"""Streams that SQL defines as tables for people: a line for each, or all about one. No Spark is needed to look."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from weir.client import streams as rest
from weir.client.blocking import Access
from weir.client.streams import Defined
from weir.model.sql_streams import StreamProgress, Wanted
from weir.model.topics import TopicName

#: What is told of each stream.
COLUMNS = (
    *("stream", "state", "rows/s", "rows", "lag", "state rows", "state bytes"),
    *("last batch", "failures", "next try", "error"),
)
#: What is told of one.
FIELDS = ("what", "value")
#: The state of a stream that shall run while no process runs the streams.
NO_WORKER = "no worker"

#: What a topic is called.
Named = Callable[[TopicName], str]


def listed(access: Access, named: Named) -> list[Sequence[Any]]:
    """All streams, as lines under `COLUMNS`."""
    streams = rest.all_streams(access)
    has_worker = bool(streams) and rest.runner(access).where is not None
    return [_line(one, state_of(one, has_worker=has_worker), named) for one in streams]


def described(access: Access, found: Defined, named: Named) -> list[tuple[str, Any]]:
    """All about one stream."""
    stream, progress, where = found.stream, found.progress or StreamProgress("", ""), rest.runner(access).where
    return [
        ("stream", named(stream.name)),
        ("state", state_of(found, has_worker=where is not None)),
        ("worker", where or ""),
        ("query", stream.sql),
        ("reads", ", ".join(named(source) for source in stream.sources)),
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
    ]


def state_of(found: Defined, *, has_worker: bool) -> str:
    """What it does, as far as is known. `has_worker`: whether a process runs the streams."""
    if found.stream.wanted is Wanted.RUNNING and not has_worker:
        return NO_WORKER
    if found.progress is None:
        return f"{found.stream.wanted.value} (not started)"
    return found.progress.state if has_worker else found.stream.wanted.value


def _line(found: Defined, state: str, named: Named) -> tuple[Any, ...]:
    told = found.progress or StreamProgress("", "")
    return (
        named(found.stream.name),
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
