"""Functions that are deployed, and what their runner says of them, as values in the metadata store.

Streams that SQL defines, their progress and their runner, as values in the metadata store.

A replay as a value in the metadata store.

Connectors and their progress, as values in the metadata store.
"""

from dataclasses import asdict
from typing import Any

from weir.model.definitions import (
    Connector,
    ConnectorProgress,
    ConnectorWanted,
    Function,
    FunctionStats,
    FunctionWanted,
    Replay,
    ReplayState,
    RunnerLease,
    SqlStream,
    StreamProgress,
    Wanted,
)
from weir.model.topics import TopicName
from weir.wire.metadata import decode, dump_fields, each, number, optional_number, optional_text, text

_CONNECTORS_TEXTS = ("id", "state", "position", "error")
_CONNECTORS_COUNTS = ("records", "lag", "dead_letters", "failures", "failed_ms", "next_try_ms", "reported_ms")

#: Not in what an older Weir has stored.
_CONNECTORS_LATER = ("restarts", "batch_ms")


def encode_connector(connector: Connector) -> bytes:
    return dump_fields(
        {
            "name": str(connector.name),
            "id": connector.id,
            "config": connector.config,
            "wanted": connector.wanted.value,
            "role": connector.role,
            "created_ms": connector.created_ms,
        }
    )


def decode_connector(data: bytes) -> Connector:
    return decode(
        data,
        "a connector",
        lambda f: Connector(
            TopicName.parse(text(f["name"])),
            text(f["id"]),
            text(f["config"]),
            ConnectorWanted(f["wanted"]),
            text(f["role"]),
            number(f["created_ms"]),
        ),
    )


def encode_connector_progress(progress: ConnectorProgress) -> bytes:
    return dump_fields(asdict(progress))


def decode_connector_progress(data: bytes) -> ConnectorProgress:
    return decode(data, "a connector's progress", lambda f: ConnectorProgress(**_progress(f)))


def _progress(found: dict[str, Any]) -> dict[str, Any]:
    texts = {name: text(found[name]) for name in _CONNECTORS_TEXTS}
    counts = {name: number(found[name]) for name in _CONNECTORS_COUNTS}
    later = {name: number(found.get(name, 0)) for name in _CONNECTORS_LATER}
    return texts | counts | later | {"records_per_second": float(found["records_per_second"])}


_TEXTS = ("id", "state", "error", "where")
_RATES = ("received_per_second", "latency_p50_ms", "latency_p99_ms")
_COUNTS = (
    "version",
    "received",
    "sent",
    "failed",
    "dead",
    "lag",
    "state_keys",
    "state_bytes",
    "failures",
    "next_try_ms",
    "started_ms",
    "reported_ms",
)

#: Not in stats that an older Weir has stored.
_LATER = ("retried", "instances", "restarts")


def encode_function(function: Function) -> bytes:
    return dump_fields(
        {
            "name": str(function.name),
            "id": function.id,
            "version": function.version,
            "code": function.code,
            "file": function.file,
            "entry": function.entry,
            "inputs": [str(one) for one in function.inputs],
            "output": None if function.output is None else str(function.output),
            "options": dict(function.options),
            "wanted": function.wanted.value,
            "role": function.role,
            "created_ms": function.created_ms,
            "updated_ms": function.updated_ms,
        }
    )


def decode_function(data: bytes) -> Function:
    return decode(
        data,
        "a function",
        lambda f: Function(
            name=TopicName.parse(text(f["name"])),
            id=text(f["id"]),
            version=number(f["version"]),
            code=text(f["code"]),
            file=text(f["file"]),
            entry=text(f["entry"]),
            inputs=tuple(TopicName.parse(text(one)) for one in each(f["inputs"])),
            output=None if f["output"] is None else TopicName.parse(text(f["output"])),
            options={text(name): text(value) for name, value in f["options"].items()},
            wanted=FunctionWanted(f["wanted"]),
            role=text(f["role"]),
            created_ms=number(f["created_ms"]),
            updated_ms=number(f["updated_ms"]),
        ),
    )


def _fields(found: dict[str, Any]) -> dict[str, Any]:
    texts = {name: text(found[name]) for name in _TEXTS}
    rates = {name: float(found[name]) for name in _RATES}
    later = {name: number(found.get(name, 0)) for name in _LATER}
    return texts | rates | later | {name: number(found[name]) for name in _COUNTS}


def encode_stats(stats: FunctionStats) -> bytes:
    return dump_fields(asdict(stats))


def decode_stats(data: bytes) -> FunctionStats:
    return decode(
        data,
        "a function's stats",
        lambda f: FunctionStats(**_fields(f)),
    )


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


def encode_replay(replay: Replay) -> bytes:
    return dump_fields(
        {
            "id": replay.id,
            "topic": str(replay.topic),
            "subscription": replay.subscription,
            "target": str(replay.target),
            "where": replay.where,
            "since_ms": replay.since_ms,
            "until_ms": replay.until_ms,
            "rate": replay.rate,
            "role": replay.role,
            "created_ms": replay.created_ms,
            "state": replay.state.value,
            "selected": list(replay.selected),
            "delivered": list(replay.delivered),
            "producer_id": replay.producer_id,
            "producer_epoch": replay.producer_epoch,
            "batch": replay.batch,
            "updated_ms": replay.updated_ms,
            "topic_id": replay.topic_id,
            "target_id": replay.target_id,
        }
    )


def decode_replay(data: bytes) -> Replay:
    return decode(
        data,
        "a replay",
        lambda f: Replay(
            id=text(f["id"]),
            topic=TopicName.parse(text(f["topic"])),
            subscription=optional_text(f["subscription"]),
            target=TopicName.parse(text(f["target"])),
            where=text(f["where"]),
            since_ms=optional_number(f["since_ms"]),
            until_ms=optional_number(f["until_ms"]),
            rate=number(f["rate"]),
            role=text(f["role"]),
            created_ms=number(f["created_ms"]),
            state=ReplayState(f["state"]),
            selected=tuple(number(one) for one in each(f["selected"])),
            delivered=tuple(number(one) for one in each(f["delivered"])),
            producer_id=number(f["producer_id"]),
            producer_epoch=number(f["producer_epoch"]),
            batch=number(f["batch"]),
            updated_ms=number(f["updated_ms"]),
            topic_id=text(f.get("topic_id", "")),
            target_id=text(f.get("target_id", "")),
        ),
    )
