"""Client connections for administrators: a gateway registers its sessions, the admin API lists and closes them.

Only gateways of protocols with visible connections and channels (AMQP) register. A gateway computes the reported
state at the moment of each request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from weir.model.topics import NamespaceName


@dataclass(frozen=True, slots=True)
class ChannelConsumer:
    """A consumer of a queue, as its channel knows it. `prefetch`: 0 for no limit."""

    tag: str
    queue: str
    no_ack: bool = False
    exclusive: bool = False
    prefetch: int = 0
    priority: int = 0
    #: False for a consumer that waits behind the queue's single active consumer.
    active: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChannelInfo:
    """The current state of a channel. `prefetch` applies to new consumers, `global_prefetch` to the whole channel;
    0: no limit. The counters start when the channel opens."""

    number: int
    consumers: tuple[ChannelConsumer, ...] = ()
    unacked: int = 0
    unconfirmed: int = 0
    uncommitted_messages: int = 0
    uncommitted_acks: int = 0
    prefetch: int = 0
    global_prefetch: int = 0
    confirm: bool = False
    transactional: bool = False
    #: Whether deliveries are on; False: the client paused them.
    flowing: bool = True
    published: int = 0
    confirmed: int = 0
    returned: int = 0
    delivered: int = 0
    acked: int = 0
    redelivered: int = 0


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """The fixed attributes of an open connection. `user`: the user name from the client; `role`: its role."""

    name: str
    user: str
    role: str
    namespace: NamespaceName
    #: The client's name for the namespace.
    vhost: str
    peer_host: str
    peer_port: int
    host: str = ""
    port: int = 0
    protocol: str = "AMQP 0-9-1"
    tls: bool = False
    auth_mechanism: str = "PLAIN"
    client_properties: Mapping[str, Any] = field(default_factory=dict)
    connected_ms: int = 0
    #: The owner id of its exclusive queues; "" if the connection cannot own such queues.
    id: str = ""
    #: Seconds; 0: none.
    heartbeat_s: int = 0
    frame_max: int = 0
    channel_max: int = 0


@dataclass(frozen=True, slots=True)
class ConnectionTraffic:
    """Traffic since the connection opened. `state`: `running`, `flow`, `blocked`, `closing`."""

    received_bytes: int = 0
    sent_bytes: int = 0
    received_frames: int = 0
    sent_frames: int = 0
    state: str = "running"


class ClientConnection(Protocol):
    """A session of a gateway, as the admin API sees it."""

    @property
    def info(self) -> ConnectionInfo: ...

    @property
    def traffic(self) -> ConnectionTraffic: ...

    def channels(self) -> Sequence[ChannelInfo]:
        """The open channels, in the order of their numbers."""

    def close(self, reason: str) -> None:
        """Close the connection soon, and send the client the reason."""


class Connections(Protocol):
    """The connections of this broker. A gateway adds a session after its client authenticated, and removes it when
    it ends."""

    def add(self, connection: ClientConnection) -> None:
        """Add a connection. Its name is unique among open connections; a later one of the same name replaces
        it."""

    def remove(self, connection: ClientConnection) -> None:
        """Remove a connection; a no-op if it is absent."""

    def all(self) -> Sequence[ClientConnection]:
        """All connections, in the order of their registration."""

    def find(self, name: str) -> ClientConnection | None: ...


class ConnectionDirectory:
    """Implements `Connections`."""

    def __init__(self) -> None:
        self._by_name: dict[str, ClientConnection] = {}

    def add(self, connection: ClientConnection) -> None:
        self._by_name[connection.info.name] = connection

    def remove(self, connection: ClientConnection) -> None:
        if self._by_name.get(connection.info.name) is connection:
            del self._by_name[connection.info.name]

    def all(self) -> Sequence[ClientConnection]:
        return list(self._by_name.values())

    def find(self, name: str) -> ClientConnection | None:
        return self._by_name.get(name)
