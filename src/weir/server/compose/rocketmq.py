"""What stands behind all listeners for RocketMQ's clients."""

from contextlib import AsyncExitStack

from weir.broker.access.security import TopicGuard
from weir.broker.broker import Broker
from weir.broker.groups.owned import GroupAccess
from weir.broker.peers.gateway_calls import PeerGatewayCalls
from weir.broker.registry.registry import Registry
from weir.gateway.rocketmq.clients import Clients as RocketmqClients
from weir.gateway.rocketmq.cluster.handed_on import HandedOnCalls
from weir.gateway.rocketmq.cluster.routing import GATEWAY as ROCKETMQ
from weir.gateway.rocketmq.consume.announcing import Announcing
from weir.gateway.rocketmq.consume.groups import ConsumerGroups
from weir.gateway.rocketmq.services import Services as RocketmqServices
from weir.runtime.interfaces import Runtime


def compose_rocketmq(
    runtime: Runtime,
    broker: Broker,
    guard: TopicGuard,
    registry: Registry,
    *,
    positions: GroupAccess,
    name: str,
    calls: PeerGatewayCalls,
    stack: AsyncExitStack,
) -> RocketmqServices:
    groups = ConsumerGroups(runtime, broker, registry)
    stack.push_async_callback(groups.close)
    clients = RocketmqClients()
    announcing = Announcing(runtime.clock, clients)
    stack.push_async_callback(announcing.close)
    services = RocketmqServices(
        runtime, broker, guard, registry, groups, clients, announcing, positions, name, calls
    )
    calls.answer(ROCKETMQ, HandedOnCalls(services).answer)
    groups.client_lives = lambda client: services.clients.find(client) is not None
    services.clients.on_gone += [groups.client_gone, services.polls.client_gone]
    stack.push_async_callback(services.polls.close)
    return services
