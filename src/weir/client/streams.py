"""Streams that SQL defines, asked of the admin REST by code that blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weir.client.admin import join
from weir.client.blocking import Access, ask
from weir.client.runners import RunnerLease
from weir.model.errors import SqlStreamNotFoundError, WireError
from weir.model.sql_streams import SqlStream, StreamProgress, Wanted
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
