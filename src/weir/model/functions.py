"""Functions that are deployed: what is wanted, and what their runner says of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from weir.model.errors import InvalidNameError
from weir.model.topics import DEFAULT_NAMESPACE, TopicName

#: Before the names of what a function has: its subscription, and the topics of its retries and its state.
PREFIX = "fn-"
#: Before the names of inputs in the properties of a function's own topic, by which its runner knows the
#: subscriptions that it removes.
INPUT_NOTE, ID_NOTE = "input ", "input-id "
_NAMES = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


def check_reachable(topic: TopicName) -> TopicName:
    """Workers read and write by Kafka's protocol: InvalidNameError for what cannot be named there."""
    name = topic.local if topic.namespace == DEFAULT_NAMESPACE else f"{topic.namespace}..{topic.local}"
    if not topic.persistent or topic.partition is not None:
        raise InvalidNameError(
            f"{topic} is not a whole, persistent topic", hint="functions keep their place in those"
        )
    if not _NAMES.fullmatch(name.replace("/", "..")):
        raise InvalidNameError(
            f"functions cannot use the name {topic.local[:80]!r}",
            hint="use letters, digits and . _ -, with the namespace 249 at the most",
        )
    return topic


class FunctionWanted(Enum):
    """What a function shall do."""

    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Function:
    """A Python function of messages, run as a subscription of its inputs for as long as it is deployed."""

    #: In the namespace that it belongs to; no topic has to have this name.
    name: TopicName
    #: Not given to another function, so what a deleted one left is not taken for its successor's.
    id: str
    #: Counts on with each update.
    version: int
    #: The text of the file, the file's name, and the function's name in it.
    code: str
    file: str
    entry: str
    inputs: tuple[TopicName, ...]
    #: Where what it returns goes; None: nowhere, unless its messages name topics.
    output: TopicName | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    wanted: FunctionWanted = FunctionWanted.RUNNING
    #: Who deployed it.
    role: str = ""
    created_ms: int = 0
    updated_ms: int = 0

    @property
    def subscription(self) -> str:
        return f"{PREFIX}{self.name.local}"

    @property
    def retry_topic(self) -> TopicName:
        """Where messages wait that it failed at."""
        return TopicName(self.name.namespace, f"{PREFIX}{self.name.local}-retry")

    @property
    def state_topic(self) -> TopicName:
        """Its state by key, the latest of each."""
        return TopicName(self.name.namespace, f"{PREFIX}{self.name.local}-state")


@dataclass(frozen=True, slots=True)
class FunctionStats:
    """What the runner last said of a function. `id`, `version`: of which one; counts: since its worker began."""

    id: str
    version: int
    #: starting, running, failed or stopped.
    state: str
    #: Messages taken, returned, failed (each time), to be tried again (each time), and given up.
    received: int = 0
    sent: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    received_per_second: float = 0.0
    #: Messages that wait for it.
    lag: int = 0
    #: From the moment a worker has a message to that of its commit, with what came of it: of the last seconds.
    latency_p50_ms: float = 0.0
    latency_p99_ms: float = 0.0
    #: Keys that have state, and its bytes.
    state_keys: int = 0
    state_bytes: int = 0
    #: What its worker, or a message, last failed of.
    error: str = ""
    #: Processes that call it now.
    instances: int = 0
    #: How often its worker was started anew after it had died, since its runner began.
    restarts: int = 0
    #: How often its worker died since it last worked, and when it is started again (ms since 1970; 0: it runs).
    failures: int = 0
    next_try_ms: int = 0
    #: For people: machine and process.
    where: str = ""
    started_ms: int = 0
    reported_ms: int = 0
