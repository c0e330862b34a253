"""Streams that SQL defines, asked of the admin REST by code that blocks.

Streams that SQL defines as tables for people: a line for each, or all about one. No Spark is needed to look.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from weir.client.admin import Access, ask, join
from weir.client.definition_runner import RunnerLease
from weir.model.definitions import SqlStream, StreamProgress, Wanted
from weir.model.errors import SqlStreamNotFoundError, WireError
from weir.model.topics import NamespaceName, TopicName

_RUNNER = RunnerLease("stream-runner")
#: Where the streams are run, if anywhere.
runner = _RUNNER.state
take_runner = _RUNNER.take
release_runner = _RUNNER.release


@dataclass(frozen=True, slots=True)
class Defined:
    """A stream, and what its runner last said of it."""

    stream: SqlStream
    progress: StreamProgress | None
    #: Why the role that defined it may not have it run any more; empty if it may.
    denied: str = ""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where all brokers listen, the one that was asked first (empty: nowhere), and where that one keeps its data
    on its machine."""

    kafka: str
    kafka_tls: str
    data: str
    http: str = ""
    https: str = ""


def all_streams(access: Access) -> Sequence[Defined]:
    return [_defined(one) for one in _list(ask(access, "GET", "streams"))]


def streams_of(access: Access, namespace: NamespaceName) -> Sequence[Defined]:
    return [_defined(one) for one in _list(ask(access, "GET", join("streams", namespace.tenant, namespace.name)))]


def find_stream(access: Access, name: TopicName) -> Defined | None:
    listed = streams_of(access, name.namespace)
    return next((one for one in listed if one.stream.name == name), None)


def get_stream(access: Access, name: TopicName) -> Defined:
    """SqlStreamNotFoundError if there is none."""
    found = find_stream(access, name)
    if found is None:
        raise SqlStreamNotFoundError(f"there is no stream {name}")
    return found


def put_stream(
    access: Access,
    name: TopicName,
    *,
    sql: str,
    sources: Sequence[TopicName],
    options: Mapping[str, str],
    wanted: Wanted,
) -> Defined:
    """Define it, or change what it shall do."""
    body = {
        "sql": sql,
        "sources": [str(source) for source in sources],
        "options": dict(options),
        "state": wanted.value,
    }
    return _defined(ask(access, "PUT", _path(name), body))


def drop_stream(access: Access, name: TopicName) -> None:
    ask(access, "DELETE", _path(name))


def report(access: Access, name: TopicName, progress: StreamProgress) -> None:
    body = {
        "id": progress.id,
        "state": progress.state,
        "rowsPerSecond": progress.rows_per_second,
        "rows": progress.rows,
        "lag": progress.lag,
        "stateRows": progress.state_rows,
        "stateBytes": progress.state_bytes,
        "batch": progress.batch,
        "batchMs": progress.batch_ms,
        "error": progress.error[:4_000],
        "failures": progress.failures,
        "failedMs": progress.failed_ms,
        "nextTryMs": progress.next_try_ms,
    }
    ask(access, "PUT", f"{_path(name)}/progress", body)


def dropped(access: Access) -> Sequence[SqlStream]:
    """Streams that are no more, and may have left something."""
    return [_defined(one).stream for one in _list(ask(access, "GET", "stream-runner/dropped"))]


def forget_dropped(access: Access, stream_id: str) -> None:
    """Nothing is left of it."""
    ask(access, "DELETE", join("stream-runner", "dropped", stream_id))


def listeners(access: Access) -> Listeners:
    found = ask(access, "GET", "addresses")
    try:
        brokers = [found, *found.get("others", [])]
        kafka, kafka_tls, http, https = (
            ",".join(one[name] for one in brokers if one[name]) for name in ("kafka", "kafkaTls", "http", "https")
        )
        return Listeners(kafka, kafka_tls, found["data"], http, https)
    except (KeyError, TypeError, AttributeError):
        raise WireError("the server does not tell its listeners as expected") from None


def _path(name: TopicName) -> str:
    return join("streams", name.namespace.tenant, name.namespace.name, name.local)


def _list(answer: Any) -> list[Any]:
    if not isinstance(answer, list):
        raise WireError("the server does not tell streams as expected")
    return answer


def _defined(found: Any) -> Defined:
    try:
        told = found.get("progress")
        stream = SqlStream(
            TopicName.parse(found["name"]),
            found["id"],
            found["sql"],
            tuple(TopicName.parse(source) for source in found["sources"]),
            found["options"],
            Wanted(found["state"]),
            found["role"],
            found["createdMs"],
        )
        return Defined(stream, None if told is None else _progress(told), found.get("denied", ""))
    except (KeyError, TypeError, ValueError, AttributeError) as bad:
        raise WireError(f"the server does not tell streams as expected: {bad!r}") from None


def _progress(told: Mapping[str, Any]) -> StreamProgress:
    return StreamProgress(
        id=told["id"],
        state=told["state"],
        rows_per_second=told["rowsPerSecond"],
        rows=told["rows"],
        lag=told["lag"],
        state_rows=told["stateRows"],
        state_bytes=told["stateBytes"],
        batch=told["batch"],
        batch_ms=told["batchMs"],
        error=told["error"],
        failures=told.get("failures", 0),
        failed_ms=told.get("failedMs", 0),
        next_try_ms=told.get("nextTryMs", 0),
        reported_ms=told["reportedMs"],
    )


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
    streams = all_streams(access)
    has_worker = bool(streams) and runner(access).where is not None
    return [_line(one, state_of(one, has_worker=has_worker), named) for one in streams]


def described(access: Access, found: Defined, named: Named) -> list[tuple[str, Any]]:
    """All about one stream."""
    stream, progress, where = found.stream, found.progress or StreamProgress("", ""), runner(access).where
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
