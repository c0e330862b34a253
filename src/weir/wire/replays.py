"""A replay as a value in the metadata store."""

from weir.model.replays import Replay, ReplayState
from weir.model.topics import TopicName
from weir.wire.metadata import dump_fields
from weir.wire.stored_values import decode, each, number, optional_number, optional_text, text


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
