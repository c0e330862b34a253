"""Queues as they are declared, and what their arguments and policies say together.

What is legal, and how two declarations compare, is as RabbitMQ has it; `docs/reference/amqp.md` names the
reply codes.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import unquote

from weir.model.errors import QueueRefusedError
from weir.model.exchanges import Fields, check_short
from weir.model.retry import RetryPolicy, parse_schedule
from weir.model.topics import DEFAULT_NAMESPACE, Domain, NamespaceName, TopicName

#: The one subscription that the consumers of a queue share.
QUEUE_SUBSCRIPTION = "queue"
#: The property of a topic that says how it was declared as a queue. A topic without it is a queue, too: durable,
#: with no arguments.
QUEUE_PROPERTY = "weir.queue"
RESERVED_PREFIX = "amq."
#: The property of a namespace that has its limits, as JSON by RabbitMQ's names for them.
LIMITS_PROPERTY = "weir.limits"
MAX_CONNECTIONS, MAX_QUEUES = "max-connections", "max-queues"
#: Queues of the broker's own, in which messages wait that an exchange routes when they are due.
DELAYED_PREFIX = "amq.delayed."
_DIGEST_BYTES = 16
_LONGEST_NAME_BYTES = 255


class QueueKind(Enum):
    """`x-queue-type`."""

    CLASSIC = "classic"
    QUORUM = "quorum"
    STREAM = "stream"


class Overflow(Enum):
    """`x-overflow`: what happens to a message that is one too many."""

    DROP_HEAD = "drop-head"
    REJECT_PUBLISH = "reject-publish"
    REJECT_PUBLISH_DLX = "reject-publish-dlx"


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    """As a client declared it. `durable`: outlives the broker. `exclusive`: of one connection, and gone with it.
    `auto_delete`: goes with its last consumer."""

    name: str
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Fields = field(default_factory=dict)

    @property
    def in_memory(self) -> bool:
        """Whether it lives in the memory of one broker, and no disk has to do with it."""
        return not self.durable or self.exclusive


def delay_queue(exchange: str) -> QueueDeclaration:
    """Where messages wait that an exchange routes when they are due: they are seen there then, cannot stay, and go
    on to the exchange."""
    name = DELAYED_PREFIX + exchange
    if len(name.encode("utf-8", "surrogateescape")) > _LONGEST_NAME_BYTES:
        digest = hashlib.blake2b(exchange.encode("utf-8", "surrogateescape"), digest_size=_DIGEST_BYTES)
        name = DELAYED_PREFIX + digest.hexdigest()
    return QueueDeclaration(name, arguments={"x-message-ttl": 0, "x-dead-letter-exchange": exchange})


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How many connections and queues a namespace may have; None: no limit."""

    connections: int | None = None
    queues: int | None = None


@dataclass(frozen=True, slots=True)
class QueueRules:
    """What holds for a queue: its arguments, and where these are silent its policy. None: no limit."""

    kind: QueueKind = QueueKind.CLASSIC
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: Overflow = Overflow.DROP_HEAD
    #: "" is the default exchange.
    dead_letter_exchange: str | None = None
    #: None: the message's own.
    dead_letter_key: str | None = None
    #: Levels of priority above 0; 0: it has none.
    max_priority: int = 0
    single_active: bool = False
    delivery_limit: int | None = None
    #: Of a stream: how old what it keeps may be.
    max_age_ms: int | None = None
    #: What is waited before a message that came back is delivered again, as `parse_schedule` reads it.
    retry_schedule: str | None = None

    @property
    def acts_by_itself(self) -> bool:
        """Whether something happens to its messages, or to itself, without a client."""
        return (
            self.message_ttl_ms is not None or self.expires_ms is not None or self.dead_letter_exchange is not None
        )

    @property
    def retry(self) -> RetryPolicy | None:
        """What its arguments and its policy say of retries; None for nothing."""
        return None if self.retry_schedule is None else RetryPolicy(parse_schedule(self.retry_schedule))


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """What is said of all queues or exchanges whose names match. Of several that match the one of the highest
    priority holds, alone; beside it one of the operator's, who has limits that nobody can exceed."""

    name: str
    pattern: str
    definition: Mapping[str, object] = field(default_factory=dict)
    priority: int = 0
    #: `queues`, `exchanges`, `all`, or one kind of queue: `classic_queues`, `quorum_queues`, `streams`.
    apply_to: str = "all"
    #: An operator's policy, of which a queue has one besides the other; of two numbers the lower one holds.
    operator: bool = False


def topic_of_queue(namespace: NamespaceName, name: str) -> TopicName:
    """The topic that a durable queue is. Letters that no topic's name has, and what would name a partition, are
    written as `%` and two hexadecimal digits for each byte; so is `%` itself. InvalidNameError if too long."""
    local = _NOT_LOCAL.sub(_escaped, name)
    if local in _DOTS or _PARTITION_END.search(local):
        local = f"{local[:-1]}{_escaped_text(local[-1])}"
    return TopicName.parse(f"{Domain.PERSISTENT.value}://{namespace}/{local}")


def queue_of_topic(topic: TopicName) -> str:
    """The name of the queue that a topic is: `topic_of_queue` the other way round. A partition is a queue, too."""
    return unquote(topic.local_with_partition, errors="surrogateescape")


def vhost_of(namespace: NamespaceName) -> str:
    """What RabbitMQ's users call the namespace: `/` is public/default, one word a namespace of public."""
    if namespace.tenant != "public":
        return str(namespace)
    return "/" if namespace.name == "default" else namespace.name


def namespace_of_vhost(vhost: str) -> NamespaceName:
    """`vhost_of` the other way round; `public/default` is `/`, too. InvalidNameError for what no namespace is
    called."""
    if vhost == "/":
        return DEFAULT_NAMESPACE
    return NamespaceName.parse(vhost if "/" in vhost else f"{DEFAULT_NAMESPACE.tenant}/{vhost}")


def queue_in_vhost(name: str, vhost: str = "/") -> str:
    """The queue as RabbitMQ's messages name it."""
    return f"queue '{name}' in vhost '{vhost}'"


def check_name(name: str) -> None:
    """QueueRefusedError for names that are the broker's; InvalidNameError for one that is too long."""
    check_short(name, "a queue's name")
    if name.startswith(RESERVED_PREFIX):
        raise QueueRefusedError(
            f"queue name {name[:80]!r} contains reserved prefix '{RESERVED_PREFIX}*'", hint="use another name"
        )


_NOT_LOCAL = re.compile(r"[\x00-\x1f\x7f/%\ud800-\udfff]")
_PARTITION_END = re.compile(r"-partition-(0|[1-9][0-9]{0,5})$")
_DOTS = (".", "..")


def _escaped(found: "re.Match[str]") -> str:
    return _escaped_text(found[0])


def _escaped_text(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "surrogateescape"))
