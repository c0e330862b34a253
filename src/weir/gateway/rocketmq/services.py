"""What stands behind every RocketMQ session."""

from dataclasses import dataclass, field

from weir.broker.api import Broker, GatewayCalls, Guard, Registry, RoleGroups
from weir.gateway.rocketmq.clients import Clients
from weir.gateway.rocketmq.cluster.polls import Polls
from weir.gateway.rocketmq.consume.announcing import Announcing
from weir.gateway.rocketmq.consume.groups import ConsumerGroups
from weir.gateway.rocketmq.metrics import RocketmqMetrics
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
    #: How far groups are, whatever protocol moves them.
    positions: RoleGroups
    broker_name: str = "weir"
    #: The same gateway of other brokers; None: there are none.
    gateway_calls: GatewayCalls | None = None
    polls: Polls = field(default_factory=Polls)
    metrics: RocketmqMetrics = field(default_factory=RocketmqMetrics)
