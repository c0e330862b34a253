"""Which types of messages a topic takes: a property of it; a topic without takes all of them."""

from collections.abc import Sequence

from weir.model.registry import TopicRecord
from weir.wire.rocketmq.proto import api

PROPERTY = "weir.message-types"
TYPES: dict[str, int] = {
    "normal": api.MessageType.NORMAL,
    "fifo": api.MessageType.FIFO,
    "delay": api.MessageType.DELAY,
    "transaction": api.MessageType.TRANSACTION,
    "lite": api.MessageType.LITE,
    "priority": api.MessageType.PRIORITY,
}
ALL = tuple(TYPES.values())


def accepted_types(topic: TopicRecord | None) -> Sequence[int]:
    said = "" if topic is None else dict(topic.properties).get(PROPERTY, "")
    found = [TYPES[name] for part in said.split(",") if (name := part.strip().lower()) in TYPES]
    return found or ALL


def name_of(kind: int) -> str:
    return next((name.upper() for name, number in TYPES.items() if number == kind), str(kind))
