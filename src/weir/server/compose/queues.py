"""The queues of a broker, put together: its own, and in a cluster those of others."""

from contextlib import AsyncExitStack

from weir.broker.access.security import Authoriser
from weir.broker.api import Queues
from weir.broker.broker import Broker
from weir.broker.context import BrokerContext
from weir.broker.peers.calls import PeerCalls, PeerHandlers
from weir.broker.queues.relayed import RelayedQueues
from weir.broker.queues.routed import RoutedQueues
from weir.broker.queues.service import PolicedExchangeService, QueueService
from weir.broker.queues.whole_topics import WholeTopicQueues
from weir.broker.registry.registry import Registry
from weir.broker.schemas.registry import SchemaRegistry


def compose_queues(
    context: BrokerContext,
    registry: Registry,
    broker: Broker,
    exchanges: PolicedExchangeService,
    *,
    name: str,
    peers: PeerCalls | None,
    handlers: PeerHandlers,
    authoriser: Authoriser,
    schemas: SchemaRegistry,
    stack: AsyncExitStack,
) -> Queues:
    """The queues of this broker; with others there, theirs too, and these are answered."""
    local = QueueService(context, registry, broker, exchanges)
    stack.push_async_callback(local.close)
    logs = _queues_of_logs(
        context, registry, broker, local, name=name, peers=peers, handlers=handlers, stack=stack
    )
    clock = context.runtime.clock
    queues = WholeTopicQueues(logs, exchanges, registry, broker, authoriser=authoriser, clock=clock)
    local.lead_to(queues)
    local.start()
    if context.trace is not None:
        context.trace.lead_to(queues, registry, schemas, name)
        stack.push_async_callback(context.trace.close)
    return queues


def _queues_of_logs(
    context: BrokerContext,
    registry: Registry,
    broker: Broker,
    local: QueueService,
    *,
    name: str,
    peers: PeerCalls | None,
    handlers: PeerHandlers,
    stack: AsyncExitStack,
) -> Queues:
    """Those that are one log each."""
    if peers is None:
        return local
    clock = context.runtime.clock
    relayed = RelayedQueues(clock, local, handlers, lambda other: other in {b.broker_id for b in broker.brokers()})
    stack.push_async_callback(relayed.close)
    routed = RoutedQueues(local, registry, broker, peers, handlers, runtime=context.runtime, broker_id=name)
    stack.push_async_callback(routed.close)
    return routed
