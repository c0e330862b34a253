"""What can be set about a client."""

from collections.abc import Callable
from dataclasses import dataclass
from ssl import SSLContext


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How it connects, who it is, and how patient it is."""

    token: str | None = None
    tls: SSLContext | None = None
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    #: Whether the broker shall say the offset of each message.
    offsets: bool = False
    #: A server that was silent for so long is asked whether it lives, and has as long to answer.
    keep_alive_s: float = 30.0
    #: Called before a request of the admin REST that may change something.
    before_change: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer sends."""

    #: The name, for deduplication; None: the broker gives one.
    name: str | None = None
    #: What is sent within one turn of the loop becomes one batch, up to these bounds.
    batch_messages: int = 1000
    batch_bytes: int = 128 * 1024
    #: Messages that wait for their receipt; above it `wait_capacity()` waits.
    max_pending: int = 5000


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """How a consumer receives."""

    #: Messages that the broker may send ahead.
    queue: int = 1000
    name: str = ""
