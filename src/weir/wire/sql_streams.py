"""Streams that SQL defines, their progress and their runner, as values in the metadata store."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from weir.model.errors import InvalidNameError, WireError
from weir.model.sql_streams import RunnerLease, SqlStream, StreamProgress, Wanted
from weir.model.topics import TopicName
from weir.wire.metadata import dump_fields, load_fields

T = TypeVar("T")


def _decode(data: bytes, what: str, build: Callable[[dict[str, Any]], T]) -> T:
    found = load_fields(data, what)
    try:
        return build(found)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, InvalidNameError) as bad:
        raise WireError(f"{what} is malformed: {bad!r}") from bad


def _text(item: Any) -> str:
    if not isinstance(item, str):
        raise TypeError(f"{type(item).__name__} instead of text")
    return item


def _number(item: Any) -> int:
    if not isinstance(item, int) or isinstance(item, bool):
        raise TypeError(f"{type(item).__name__} instead of a whole number")
    return item


def _list(items: Any) -> list[Any]:
    if not isinstance(items, list):
        raise TypeError(f"{type(items).__name__} instead of a list")
    return items


def encode_stream(stream: SqlStream) -> bytes:
    return dump_fields(
        {
            "name": str(stream.name),
            "id": stream.id,
            "sql": stream.sql,
            "sources": [str(source) for source in stream.sources],
            "options": dict(stream.options),
            "wanted": stream.wanted.value,
            "role": stream.role,
            "created_ms": stream.created_ms,
        }
    )


def decode_stream(data: bytes) -> SqlStream:
    return _decode(
        data,
        "a SQL stream",
        lambda f: SqlStream(
            TopicName.parse(_text(f["name"])),
            _text(f["id"]),
            _text(f["sql"]),
            tuple(TopicName.parse(_text(one)) for one in _list(f["sources"])),
            {_text(name): _text(value) for name, value in f["options"].items()},
            Wanted(f["wanted"]),
            _text(f["role"]),
            _number(f["created_ms"]),
        ),
    )


def encode_progress(progress: StreamProgress) -> bytes:
    return dump_fields(asdict(progress))


def decode_progress(data: bytes) -> StreamProgress:
    counts = ("rows", "lag", "state_rows", "state_bytes", "batch", "batch_ms", "reported_ms")
    later = ("failures", "failed_ms", "next_try_ms")  # an older runner does not tell them
    return _decode(
        data,
        "a stream's progress",
        lambda f: StreamProgress(
            id=_text(f["id"]),
            state=_text(f["state"]),
            rows_per_second=float(f["rows_per_second"]),
            error=_text(f["error"]),
            **{name: _number(f[name]) for name in counts},
            **{name: _number(f.get(name, 0)) for name in later},
        ),
    )


def encode_runner(lease: RunnerLease) -> bytes:
    return dump_fields(asdict(lease))


def decode_runner(data: bytes) -> RunnerLease:
    return _decode(
        data,
        "a runner",
        lambda f: RunnerLease(_text(f["runner"]), _text(f["where"]), _number(f["expires_ms"])),
    )
