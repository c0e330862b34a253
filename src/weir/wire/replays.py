"""A replay as a value in the metadata store."""

from typing import Any

from weir.model.errors import InvalidNameError, WireError
from weir.model.replays import Replay, ReplayState
from weir.model.topics import TopicName
from weir.wire.metadata import dump_fields, load_fields


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
        }
    )


def decode_replay(data: bytes) -> Replay:
    f = load_fields(data, "a replay")
    try:
        return Replay(
            id=_text(f["id"]),
            topic=TopicName.parse(_text(f["topic"])),
            subscription=None if f["subscription"] is None else _text(f["subscription"]),
            target=TopicName.parse(_text(f["target"])),
            where=_text(f["where"]),
            since_ms=None if f["since_ms"] is None else _number(f["since_ms"]),
            until_ms=None if f["until_ms"] is None else _number(f["until_ms"]),
            rate=_number(f["rate"]),
            role=_text(f["role"]),
            created_ms=_number(f["created_ms"]),
            state=ReplayState(f["state"]),
            selected=tuple(_number(one) for one in _list(f["selected"])),
            delivered=tuple(_number(one) for one in _list(f["delivered"])),
            producer_id=_number(f["producer_id"]),
            producer_epoch=_number(f["producer_epoch"]),
            batch=_number(f["batch"]),
            updated_ms=_number(f["updated_ms"]),
        )
    except (KeyError, ValueError, TypeError, InvalidNameError) as bad:
        raise WireError(f"a replay is malformed: {bad!r}") from bad


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
