"""Functions that are deployed, and what their runner says of them, as values in the metadata store."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from weir.model.errors import InvalidNameError, WireError
from weir.model.functions import Function, FunctionStats, FunctionWanted
from weir.model.topics import TopicName
from weir.wire.metadata import dump_fields, load_fields

T = TypeVar("T")

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
    return _decode(
        data,
        "a function",
        lambda f: Function(
            name=TopicName.parse(_text(f["name"])),
            id=_text(f["id"]),
            version=_number(f["version"]),
            code=_text(f["code"]),
            file=_text(f["file"]),
            entry=_text(f["entry"]),
            inputs=tuple(TopicName.parse(_text(one)) for one in _list(f["inputs"])),
            output=None if f["output"] is None else TopicName.parse(_text(f["output"])),
            options={_text(name): _text(value) for name, value in f["options"].items()},
            wanted=FunctionWanted(f["wanted"]),
            role=_text(f["role"]),
            created_ms=_number(f["created_ms"]),
            updated_ms=_number(f["updated_ms"]),
        ),
    )


def _fields(found: dict[str, Any]) -> dict[str, Any]:
    texts = {name: _text(found[name]) for name in _TEXTS}
    rates = {name: float(found[name]) for name in _RATES}
    later = {name: _number(found.get(name, 0)) for name in _LATER}
    return texts | rates | later | {name: _number(found[name]) for name in _COUNTS}


def encode_stats(stats: FunctionStats) -> bytes:
    return dump_fields(asdict(stats))


def decode_stats(data: bytes) -> FunctionStats:
    return _decode(
        data,
        "a function's stats",
        lambda f: FunctionStats(**_fields(f)),
    )
