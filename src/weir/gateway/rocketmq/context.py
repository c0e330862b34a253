"""Services shared by RocketMQ sessions."""

from dataclasses import dataclass, field

from weir.broker.api.broker import Broker, GatewayCalls
from weir.broker.api.groups import RoleGroups
from weir.broker.api.metadata import Registry
from weir.broker.api.security import Guard
from weir.gateway.rocketmq.clients import Announcing, Clients
from weir.gateway.rocketmq.consumer_groups import ConsumerGroups
from weir.gateway.rocketmq.remote_polls import Polls
from weir.gateway.rocketmq.settings import RocketmqMetrics
from weir.runtime.interfaces import Runtime


@dataclass(frozen=True, slots=True)
class Services:
    """Shared by all listeners."""

    runtime: Runtime
    broker: Broker
    guard: Guard
    registry: Registry
    groups: ConsumerGroups
    clients: Clients
    announcing: Announcing
    #: Committed offsets of groups, for all protocols.
    positions: RoleGroups
    broker_name: str = "weir"
    #: Calls to the RocketMQ gateways of other brokers; None on a standalone broker.
    gateway_calls: GatewayCalls | None = None
    polls: Polls = field(default_factory=Polls)
    metrics: RocketmqMetrics = field(default_factory=RocketmqMetrics)
