"""Replays: messages that a query picked, delivered again; what is kept of each, and what their copies say."""

from dataclasses import dataclass
from enum import Enum

from weir.model.topics import TopicName

#: Headers (Pulsar's and RocketMQ's properties) of a message that was delivered again.
ID_HEADER = "weir-replay-id"
TOPIC_HEADER = "weir-replay-topic"
PARTITION_HEADER = "weir-replay-partition"
OFFSET_HEADER = "weir-replay-offset"
#: The only subscription that gets it, if it went to one.
SUBSCRIPTION_HEADER = "weir-replay-subscription"
HEADERS = (ID_HEADER, TOPIC_HEADER, PARTITION_HEADER, OFFSET_HEADER, SUBSCRIPTION_HEADER)


#: Begins the names of topics that hold what a replay delivers, beside the topic that it comes from.
SELECTION_PREFIX = "__replay-"


def is_selection(topic: TopicName) -> bool:
    return topic.local.startswith(SELECTION_PREFIX)


class ReplayState(Enum):
    """How far a replay is."""

    #: Its messages are being picked; nothing was delivered.
    SELECTING = "selecting"
    #: It is fixed which messages these are, and they are being delivered.
    DELIVERING = "delivering"
    DONE = "done"
    #: Somebody ended it; what was delivered stays.
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Replay:
    """What was asked for, by whom, and how far it is."""

    id: str
    #: Where the messages come from.
    topic: TopicName
    #: Where they go: to one subscription of that topic, or (None) to the topic `target`.
    subscription: str | None
    target: TopicName
    #: The condition, in SQL; and the times between which messages are: ms since 1970, the second not included.
    where: str = ""
    since_ms: int | None = None
    until_ms: int | None = None
    #: Messages per second; 0: as fast as it goes.
    rate: int = 0
    role: str = ""
    created_ms: int = 0
    state: ReplayState = ReplayState.SELECTING
    #: How many messages were picked, and how many of them were delivered; by partition of where they go.
    selected: tuple[int, ...] = ()
    delivered: tuple[int, ...] = ()
    #: The idempotent producer that delivers them: its sequence numbers are places in the selection.
    producer_id: int = -1
    producer_epoch: int = -1
    #: Messages in one batch at the most. Part of what is kept: batches that are sent again must be the same.
    batch: int = 500
    updated_ms: int = 0
    #: The ids of `topic` and `target` when the replay began: a topic that was deleted and created again has
    #: another one. Empty: unknown, in replays of an older Weir.
    topic_id: str = ""
    target_id: str = ""

    @property
    def into(self) -> str:
        """For people."""
        return str(self.target) if self.subscription is None else f"{self.topic} {self.subscription}"
