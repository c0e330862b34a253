"""Streams that SQL defines: what is wanted, how far it is, and who runs them.

Functions that are deployed: what is wanted, and what their runner says of them.

Replays: messages that a query picked, delivered again; what is kept of each, and what their copies say.

Connectors: what is carried between topics and other systems, what is wanted of it, and how far it is.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from weir.model.errors import InvalidNameError, SqlError
from weir.model.topics import DEFAULT_NAMESPACE, TopicName


class ConnectorWanted(Enum):
    """What a connector shall do. A paused one keeps what it has open; a stopped one has nothing open."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Connector:
    """A definition. Its name is built as a topic's is, and is no topic."""

    name: TopicName
    #: Not given to another connector, so what a removed one left is not taken for its successor's.
    id: str
    #: What its file said, as JSON; secrets are named there, never told.
    config: str
    wanted: ConnectorWanted = ConnectorWanted.RUNNING
    #: Who defined it.
    role: str = ""
    created_ms: int = 0

    @property
    def subscription(self) -> str:
        """By which a sink reads; what it has not read stays in the topic."""
        return f"connect-{self.name.local}"


@dataclass(frozen=True, slots=True)
class ConnectorProgress:
    """What the runner last said of a connector. `id`: which connector of that name it is about."""

    id: str
    #: starting, running, failed, paused or stopped.
    state: str
    #: Carried since the runner started it.
    records: int = 0
    records_per_second: float = 0.0
    #: Messages that wait for it, of a sink; of a source what it knows of; -1: not known.
    lag: int = -1
    #: How many could not be carried, and are dead letters.
    dead_letters: int = 0
    #: How often it was opened again after a failure, since its runner began; and how long its last batch took.
    restarts: int = 0
    batch_ms: int = 0
    #: Where it is, in its own words.
    position: str = ""
    #: What it last died of; kept until it is seen to work again.
    error: str = ""
    failures: int = 0
    #: When it died last, and when it is tried again, in ms since 1970; 0: never, or it is being tried.
    failed_ms: int = 0
    next_try_ms: int = 0
    reported_ms: int = 0


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


#: Limits of a stored query. One process parses and plans the queries of all tenants.
MAX_SQL_CHARACTERS = 100_000
MAX_SQL_TOKENS = 10_000
MAX_SQL_NESTING = 50
_HOW_SMALLER = "divide it into several streams; a list of values can be a topic that the query joins"

#: A comment, a literal or quoted name (up to the end of the text if it is not closed), a word or a symbol. No
#: alternative can backtrack, so the time is linear.
_LEXEME = re.compile(
    r"""(?P<comment>--[^\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/)?)
    |'(?:[^'\\]|\\.)*+\\?'?|"(?:[^"\\]|\\.)*+\\?"?|`[^`]*+`?
    |(?P<open>[(\[{])|(?P<close>[)\]}])|\w++|[^\w\s]""",
    re.VERBOSE | re.DOTALL,
)


class Wanted(Enum):
    """What a stream shall do."""

    RUNNING = "running"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class SqlStream:
    """A query whose rows go to the topic of this name, for as long as it is defined."""

    name: TopicName
    #: Not given to another stream, so what a dropped one left is not taken for its successor's.
    id: str
    sql: str
    #: The topics that it reads. Whoever defined it may read these; the runner reads no others for it.
    sources: tuple[TopicName, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    wanted: Wanted = Wanted.RUNNING
    #: Who defined it.
    role: str = ""
    created_ms: int = 0

    @property
    def subscription(self) -> str:
        """Under which the sources show how far the stream is."""
        return f"stream-{table_name(self.name)}"


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """What the runner last said of a stream. `id`: which stream of that name it is about."""

    id: str
    #: starting, running, failed or paused.
    state: str
    rows_per_second: float = 0.0
    #: Rows read since the runner started it.
    rows: int = 0
    #: Messages that wait for it: not yet processed, those of partitions that it never read among them.
    lag: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    #: The last micro-batch; -1 if there was none.
    batch: int = -1
    batch_ms: int = 0
    #: What it last died of; kept until it is seen to work again.
    error: str = ""
    #: How often it died since it last worked.
    failures: int = 0
    #: When it died last, and when it is tried again, in ms since 1970; 0: never, or it is being tried.
    failed_ms: int = 0
    next_try_ms: int = 0
    reported_ms: int = 0


@dataclass(frozen=True, slots=True)
class RunnerLease:
    """The one process that runs the streams, until it fails to say so in time."""

    runner: str
    where: str
    expires_ms: int


def table_name(topic: TopicName) -> str:
    """The shortest name by which SQL knows the topic."""
    namespace = topic.namespace
    if namespace == DEFAULT_NAMESPACE:
        parts = [topic.local]
    elif namespace.tenant == DEFAULT_NAMESPACE.tenant:
        parts = [namespace.name, topic.local]
    else:
        parts = [namespace.tenant, namespace.name, topic.local]
    return ".".join(part if part.isidentifier() else f"`{part}`" for part in parts)


def check_query_size(sql: str) -> None:
    """SqlError if a query of a stream exceeds a limit. Needs no SQL parser, and time linear in the text."""
    if len(sql) > MAX_SQL_CHARACTERS:
        raise SqlError(
            f"the query has {len(sql):,} characters; the limit is {MAX_SQL_CHARACTERS:,}", hint=_HOW_SMALLER
        )
    tokens = depth = 0
    for found in _LEXEME.finditer(sql):
        kind = found.lastgroup
        tokens += kind != "comment"
        depth += (kind == "open") - (kind == "close")
        if depth > MAX_SQL_NESTING:
            raise SqlError(
                f"the query nests more than {MAX_SQL_NESTING} brackets", hint="write WITH name AS (...) SELECT ..."
            )
        check_token_count(tokens)


def check_token_count(tokens: int) -> None:
    if tokens > MAX_SQL_TOKENS:
        raise SqlError(f"the query has more than {MAX_SQL_TOKENS:,} words and symbols", hint=_HOW_SMALLER)


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
