"""The services behind all listeners for RocketMQ clients."""

from contextlib import AsyncExitStack

from weir.broker.broker import Broker
from weir.broker.groups.group_access import GroupAccess
from weir.broker.metadata.registry import Registry
from weir.broker.peers.peer_calls import PeerGatewayCalls
from weir.broker.security.authorization import TopicGuard
from weir.gateway.rocketmq.clients import Announcing
from weir.gateway.rocketmq.clients import Clients as RocketmqClients
from weir.gateway.rocketmq.consumer_groups import ConsumerGroups
from weir.gateway.rocketmq.context import Services as RocketmqServices
from weir.gateway.rocketmq.forwarding import GATEWAY as ROCKETMQ
from weir.gateway.rocketmq.forwarding import HandedOnCalls
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
