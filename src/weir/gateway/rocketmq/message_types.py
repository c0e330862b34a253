"""Which types of messages a topic takes, in RocketMQ's numbers."""

from collections.abc import Sequence

from weir.model.consumer_groups import MESSAGE_TYPES, TYPES_PROPERTY, types_in
from weir.model.registry import TopicRecord
from weir.wire.rocketmq.proto import api

_NUMBERS: dict[str, int] = {name: api.MessageType.Value(name.upper()) for name in MESSAGE_TYPES}
#: Those that most clients do not know yet: they fail where they hear of them.
NEW_TYPES = (_NUMBERS["lite"], _NUMBERS["priority"])
ALL = tuple(_NUMBERS.values())


def accepted_types(topic: TopicRecord | None) -> Sequence[int]:
    """`ALL` itself, of a topic of which nothing is said."""
    if topic is None or TYPES_PROPERTY not in topic.properties:
        return ALL
    return [_NUMBERS[name] for name in types_in(topic.properties)]


def name_of(kind: int) -> str:
    return next((name.upper() for name, number in _NUMBERS.items() if number == kind), str(kind))
