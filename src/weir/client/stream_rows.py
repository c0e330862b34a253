"""Streams that SQL defines as tables for people: a line for each, or all about one. No Spark is needed to look."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from weir.client import streams as rest
from weir.client.blocking import Access
from weir.client.streams import Defined
from weir.model.sql_streams import StreamProgress, Wanted
from weir.model.topics import TopicName
from weir.runtime.real import RealClock

#: What is told of each stream.
COLUMNS = (
    *("stream", "state", "rows/s", "rows", "lag", "state rows", "state bytes"),
    *("last batch", "failures", "next try", "error"),
)
#: What is told of one.
FIELDS = ("what", "value")
#: A runner that said nothing for so long is not there.
_STALE_MS = 30_000

#: What a topic is called.
Named = Callable[[TopicName], str]


def listed(access: Access, named: Named) -> list[Sequence[Any]]:
    """All streams, as lines under `COLUMNS`."""
    return [_line(one, state_of(access, one), named) for one in rest.all_streams(access)]


def described(access: Access, found: Defined, named: Named) -> list[tuple[str, Any]]:
    """All about one stream."""
    stream, progress = found.stream, found.progress or StreamProgress("", "")
    return [
        ("stream", named(stream.name)),
        ("state", state_of(access, found)),
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


def state_of(access: Access, found: Defined) -> str:
    """What it does, as far as is known."""
    if found.progress is None:
        return f"{found.stream.wanted.value} (not started)"
    stale = RealClock().wall_ms() - found.progress.reported_ms > _STALE_MS
    if stale and rest.runner(access).where is None:
        return "paused" if found.stream.wanted is Wanted.PAUSED else "no runner"
    return found.progress.state


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
