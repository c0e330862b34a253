"""Connections that people want to see and to close: a gateway registers each of its sessions, the admin API lists
them.

For protocols whose users know their connections and channels; what a gateway tells is its state now, asked for
when somebody looks.
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
    #: False of one that waits until another, which is alone active, has gone.
    active: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChannelInfo:
    """A channel at this moment. `prefetch` is that of new consumers, `global_prefetch` of the whole channel; 0: no
    limit. The counters count since it was opened."""

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
    #: Whether it may be sent deliveries; False: the client asked for none.
    flowing: bool = True
    published: int = 0
    confirmed: int = 0
    returned: int = 0
    delivered: int = 0
    acked: int = 0
    redelivered: int = 0


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """What does not change while it is open. `user`: the name that the client gave; `role`: whom it stands for."""

    name: str
    user: str
    role: str
    namespace: NamespaceName
    #: The namespace, as the client called it.
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
    #: What its exclusive queues know it by; "" if it has none of the kind.
    id: str = ""
    #: Seconds; 0: none.
    heartbeat_s: int = 0
    frame_max: int = 0
    channel_max: int = 0


@dataclass(frozen=True, slots=True)
class ConnectionTraffic:
    """Since it was opened. `state`: `running`, `flow`, `blocked`, `closing`."""

    received_bytes: int = 0
    sent_bytes: int = 0
    received_frames: int = 0
    sent_frames: int = 0
    state: str = "running"


class ClientConnection(Protocol):
    """A gateway's session, as others see it."""

    @property
    def info(self) -> ConnectionInfo: ...

    @property
    def traffic(self) -> ConnectionTraffic: ...

    def channels(self) -> Sequence[ChannelInfo]:
        """By their numbers."""

    def close(self, reason: str) -> None:
        """End it soon; its client is told the reason."""


class Connections(Protocol):
    """Those of this broker. A gateway adds a session once its client is known, and removes it when it ends."""

    def add(self, connection: ClientConnection) -> None:
        """Its name is one that no other has while it is there; a later one with the same name takes its place."""

    def remove(self, connection: ClientConnection) -> None:
        """Fine if it is not there."""

    def all(self) -> Sequence[ClientConnection]:
        """In the order in which they came."""

    def find(self, name: str) -> ClientConnection | None: ...


class ConnectionDirectory:
    """Fills `Connections`."""

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
