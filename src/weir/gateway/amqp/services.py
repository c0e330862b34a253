"""What stands behind every AMQP session."""

from dataclasses import dataclass, field

from weir.broker.api import Broker, ConnectionDirectory, Connections, DirectReplies, Exchanges, Guard, Queues
from weir.gateway.amqp.consume.decoded import DecodedBatches
from weir.gateway.amqp.metrics import AmqpMetrics
from weir.runtime.interfaces import Runtime


@dataclass(frozen=True, slots=True)
class Services:
    """Shared by all listeners."""

    runtime: Runtime
    broker: Broker
    exchanges: Exchanges
    queues: Queues
    guard: Guard
    replies: DirectReplies
    #: Those who are connected, for whoever wants to see them.
    connections: Connections = field(default_factory=ConnectionDirectory)
    metrics: AmqpMetrics = field(default_factory=AmqpMetrics)
    #: Batches that several consumers get parts of.
    decoded: DecodedBatches = field(default_factory=DecodedBatches)
