"""Functions that are deployed, and what their runner says of them, as values in the metadata store."""

from dataclasses import asdict
from typing import Any

from weir.model.functions import Function, FunctionStats, FunctionWanted
from weir.model.topics import TopicName
from weir.wire.metadata import dump_fields
from weir.wire.stored_values import decode, each, number, text

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
