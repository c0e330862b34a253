"""Streams that SQL defines, their progress and their runner, as values in the metadata store."""

from dataclasses import asdict

from weir.model.sql_streams import RunnerLease, SqlStream, StreamProgress, Wanted
from weir.model.topics import TopicName
from weir.wire.metadata import dump_fields
from weir.wire.stored_values import decode, each, number, text


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
    return decode(
        data,
        "a SQL stream",
        lambda f: SqlStream(
            TopicName.parse(text(f["name"])),
            text(f["id"]),
            text(f["sql"]),
            tuple(TopicName.parse(text(one)) for one in each(f["sources"])),
            {text(name): text(value) for name, value in f["options"].items()},
            Wanted(f["wanted"]),
            text(f["role"]),
            number(f["created_ms"]),
        ),
    )


def encode_progress(progress: StreamProgress) -> bytes:
    return dump_fields(asdict(progress))


def decode_progress(data: bytes) -> StreamProgress:
    counts = ("rows", "lag", "state_rows", "state_bytes", "batch", "batch_ms", "reported_ms")
    later = ("failures", "failed_ms", "next_try_ms")  # an older runner does not tell them
    return decode(
        data,
        "a stream's progress",
        lambda f: StreamProgress(
            id=text(f["id"]),
            state=text(f["state"]),
            rows_per_second=float(f["rows_per_second"]),
            error=text(f["error"]),
            **{name: number(f[name]) for name in counts},
            **{name: number(f.get(name, 0)) for name in later},
        ),
    )


def encode_runner(lease: RunnerLease) -> bytes:
    return dump_fields(asdict(lease))


def decode_runner(data: bytes) -> RunnerLease:
    return decode(
        data,
        "a runner",
        lambda f: RunnerLease(text(f["runner"]), text(f["where"]), number(f["expires_ms"])),
    )
