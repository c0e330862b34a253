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

#: Properties that Pulsar's own clients give the dead letters that they write themselves, by a `DeadLetterPolicy`.
_REAL_TOPIC = "REAL_TOPIC"
_REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
_RECONSUMED = "RECONSUMETIMES"
CLIENT_NAMES = (
    _REAL_TOPIC,
    _REAL_SUBSCRIPTION,
    _RECONSUMED,
    "ORIGIN_MESSAGE_ID",
    "ORIGIN_MESSAGE_IDY_TIME",
    "DELAY_TIME",
    "EXCEPTION_CLASS",
    "EXCEPTION_MESSAGE",
)
_CLIENT_REASON = "delivery_limit"


@dataclass(frozen=True, slots=True)
class Death:
    """`deliveries`: how often it was delivered. `topic`: with its partition, if it has any. `offset`: None if a
    Pulsar client wrote the letter: clients record message ids. `names`: the headers that tell of the death."""

    reason: str
    deliveries: int
    topic: TopicName
    offset: int | None
    subscription: str
    stored_ms: int
    died_ms: int
    names: Sequence[str] = NAMES

    def headers(self) -> list[tuple[str, bytes | None]]:
        partition = self.topic.partition
        said = {
            REASON: self.reason,
            DELIVERIES: str(self.deliveries),
            TOPIC: str(self.topic.base),
            PARTITION: None if partition is None else str(partition),
            OFFSET: None if self.offset is None else str(self.offset),
            SUBSCRIPTION: self.subscription,
            STORED_MS: str(self.stored_ms),
            DIED_MS: str(self.died_ms),
        }
        return [(name, text.encode()) for name, text in said.items() if text is not None]


def death_in(headers: Sequence[tuple[str, bytes | None]]) -> Death | None:
    """Read a dead letter's headers, Weir's own or those of Pulsar's clients; None if the message is no dead
    letter."""
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
        return _client_death(headers)


def _client_death(headers: Sequence[tuple[str, bytes | None]]) -> Death | None:
    """A Pulsar client names the topic (with its partition), some clients name the subscription."""
    said = {name: value.decode(errors="replace") for name, value in headers if name in CLIENT_NAMES and value}
    deliveries = said.get(_RECONSUMED, "")
    try:
        return Death(
            _CLIENT_REASON,
            int(deliveries) if deliveries.isascii() and deliveries.isdigit() else 0,
            TopicName.parse(said[_REAL_TOPIC]),
            None,
            said.get(_REAL_SUBSCRIPTION, ""),
            0,
            0,
            CLIENT_NAMES,
        )
    except (KeyError, InvalidNameError):
        return None
