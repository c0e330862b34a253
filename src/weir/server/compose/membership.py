"""A broker's side in its cluster: what it owns, how it asks other brokers, and what it answers them."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from weir.broker.broker import Broker
from weir.broker.bundles.moving import BundleMoves
from weir.broker.bundles.numbers import number_of
from weir.broker.bundles.ownership import BundleOwnership
from weir.broker.bundles.peer_parts import PeerParts
from weir.broker.bundles.peer_successor import PeerSuccessor
from weir.broker.bundles.silent import PeerReach
from weir.broker.context import BrokerContext
from weir.broker.exchanges.table import Cluster
from weir.broker.half.elsewhere import CheckersElsewhere
from weir.broker.peers.calls import LonePeers, PeerCalls, PeerHandlers
from weir.broker.peers.metrics import PeerMetrics
from weir.broker.peers.pool import PeerPool
from weir.broker.registry.registry import Registry
from weir.meta.interfaces import MetaStore
from weir.model.registry import BrokerInfo
from weir.runtime.interfaces import Runtime
from weir.runtime.movable import unmoved
from weir.server.compose.composition import Composition


def compose_peers(
    runtime: Runtime,
    how: Composition,
    handlers: PeerHandlers,
    metrics: PeerMetrics,
    *,
    brokers: Callable[[], list[BrokerInfo]],
    stack: AsyncExitStack,
) -> PeerCalls:
    """How the broker's parts ask other brokers."""
    if how.peers is None:
        return LonePeers(how.name, handlers)
    pool = PeerPool(
        runtime,
        how.name,
        handlers,
        brokers,
        settings=how.peers.client,
        credentials=how.peers.credentials,
        metrics=metrics,
    )
    stack.push_async_callback(pool.close)
    return pool


async def own_bundles(
    runtime: Runtime, meta: MetaStore, how: Composition, registry: Registry, stack: AsyncExitStack
) -> BundleMoves:
    runtime = replace(runtime, clock=unmoved(runtime.clock))  # leases are renewed by it
    number = await number_of(meta, runtime, how.name)
    instance = f"{runtime.rng.getrandbits(64):016x}"
    info = BrokerInfo(how.name, instance, how.listeners, number, rack=how.rack, features=how.features)
    ownership = BundleOwnership(
        meta,
        runtime,
        info,
        how.ownership,
        isolation_of=registry.isolation,
    )
    bundles = BundleMoves(ownership)
    await ownership.start()
    stack.push_async_callback(ownership.close)
    return bundles


def join_cluster(
    bundles: BundleMoves,
    broker: Broker,
    context: BrokerContext,
    how: Composition,
    *,
    peers: PeerCalls,
    handlers: PeerHandlers,
) -> None:
    """What a broker asks others for, and answers them."""
    bundles.serve(broker, PeerSuccessor(peers, handlers, bundles))
    bundles.ownership.silent.reach = PeerReach(peers, context.runtime.clock)
    broker.deletions.elsewhere = PeerParts(context.runtime.clock, peers, handlers, broker)
    if how.peers is not None:
        here = context.half_checkers
        elsewhere = CheckersElsewhere(
            here, context.guard, peers, handlers, broker_id=how.name, brokers=bundles.ownership.brokers
        )
        here.elsewhere = elsewhere.ask


def cluster_of(ownership: BundleOwnership) -> Cluster:
    return Cluster(ownership.me.instance, lambda: {info.instance for info in ownership.brokers()})
