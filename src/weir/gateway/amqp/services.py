"""What stands behind every AMQP session."""

from dataclasses import dataclass, field

from weir.broker.api import Broker, ConnectionDirectory, Connections, Exchanges, Guard, Queues
from weir.gateway.amqp.consume.decoded import DecodedBatches
from weir.gateway.amqp.metrics import AmqpMetrics
from weir.gateway.amqp.publish.reply_to import ReplyConsumers
from weir.runtime.interfaces import Runtime


@dataclass(frozen=True, slots=True)
class Services:
    """Shared by all listeners."""

    runtime: Runtime
    broker: Broker
    exchanges: Exchanges
    queues: Queues
    guard: Guard
    #: Those who are connected, for whoever wants to see them.
    connections: Connections = field(default_factory=ConnectionDirectory)
    metrics: AmqpMetrics = field(default_factory=AmqpMetrics)
    #: Who waits for answers without a queue.
    replies: ReplyConsumers = field(default_factory=ReplyConsumers)
    #: Batches that several consumers get parts of.
    decoded: DecodedBatches = field(default_factory=DecodedBatches)
