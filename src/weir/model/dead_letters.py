"""What a dead letter says of itself, in headers that every protocol can read: why, how often, and where from."""

from collections.abc import Sequence
from dataclasses import dataclass

from weir.model.errors import InvalidNameError
from weir.model.topics import TopicName

#: Headers (Kafka, AMQP) or properties (Pulsar, RocketMQ) of a dead letter. Of one that died again after it was put
#: back the latest death holds.
REASON = "weir-dead-reason"
DELIVERIES = "weir-dead-deliveries"
TOPIC = "weir-dead-topic"
PARTITION = "weir-dead-partition"
OFFSET = "weir-dead-offset"
SUBSCRIPTION = "weir-dead-subscription"
#: When it was stored in its topic, and when it died: milliseconds since 1970.
STORED_MS = "weir-dead-stored-ms"
DIED_MS = "weir-dead-died-ms"
NAMES = (REASON, DELIVERIES, TOPIC, PARTITION, OFFSET, SUBSCRIPTION, STORED_MS, DIED_MS)


@dataclass(frozen=True, slots=True)
class Death:
    """`deliveries`: how often it was delivered. `topic`: with its partition, if it has any."""

    reason: str
    deliveries: int
    topic: TopicName
    offset: int
    subscription: str
    stored_ms: int
    died_ms: int

    def headers(self) -> list[tuple[str, bytes | None]]:
        partition = self.topic.partition
        said = {
            REASON: self.reason,
            DELIVERIES: str(self.deliveries),
            TOPIC: str(self.topic.base),
            PARTITION: None if partition is None else str(partition),
            OFFSET: str(self.offset),
            SUBSCRIPTION: self.subscription,
            STORED_MS: str(self.stored_ms),
            DIED_MS: str(self.died_ms),
        }
        return [(name, text.encode()) for name, text in said.items() if text is not None]


def death_in(headers: Sequence[tuple[str, bytes | None]]) -> Death | None:
    """What a message says of its death; None of one that is no dead letter."""
    said = {name: value.decode(errors="replace") for name, value in headers if name in NAMES and value is not None}
    try:
        base = TopicName.parse(said[TOPIC])
        return Death(
            said.get(REASON, ""),
            int(said.get(DELIVERIES, "0")),
            base.at(int(said[PARTITION])) if PARTITION in said else base,
            int(said[OFFSET]),
            said.get(SUBSCRIPTION, ""),
            int(said.get(STORED_MS, "0")),
            int(said.get(DIED_MS, "0")),
        )
    except (KeyError, ValueError, InvalidNameError):
        return None
