"""Which types of messages a topic takes, in RocketMQ's numbers."""

from collections.abc import Sequence

from weir.model.consumer_groups import MESSAGE_TYPES, types_in
from weir.model.registry import TopicRecord
from weir.wire.rocketmq.proto import api

_NUMBERS: dict[str, int] = {name: api.MessageType.Value(name.upper()) for name in MESSAGE_TYPES}
_ALL = tuple(_NUMBERS.values())


def accepted_types(topic: TopicRecord | None) -> Sequence[int]:
    if topic is None or not topic.properties:
        return _ALL
    return [_NUMBERS[name] for name in types_in(topic.properties)]


def name_of(kind: int) -> str:
    return next((name.upper() for name, number in _NUMBERS.items() if number == kind), str(kind))
