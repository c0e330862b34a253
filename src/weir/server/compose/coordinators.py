"""Coordinators of consumer groups and transactions, and the partitions that they have to do with."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from weir.broker.access.security import Authoriser
from weir.broker.broker import Broker
from weir.broker.bundles.moving import BundleMoves
from weir.broker.context import BrokerContext
from weir.broker.coordinator_shards import CLUSTER_SHARDS, CoordinatorShards, ShardCount
from weir.broker.groups.coordinator import GroupCoordinator
from weir.broker.groups.offsets import GroupOffsets
from weir.broker.groups.owned import GroupAccess
from weir.broker.parts.interface import Parts
from weir.broker.parts.local import LocalParts
from weir.broker.parts.routed import PartsService, RoutedParts
from weir.broker.peers.calls import PeerCalls, PeerHandlers
from weir.broker.registry.registry import Registry
from weir.broker.transactions.coordinator import Transactions
from weir.broker.transactions.elsewhere import Elsewhere, TransactionsService
from weir.broker.transactions.model import TransactionSettings
from weir.broker.transactions.owned import TransactionAccess
from weir.broker.transactions.taking_part import TakingPart
from weir.gateway.kafka.catalog import Catalog
from weir.gateway.kafka.grouping import topics_read
from weir.ledger.idblocks import IdBlocks
from weir.meta import keys
from weir.runtime.interfaces import Clock
from weir.server.compose.composition import Composition


@dataclass(frozen=True, slots=True)
class Coordinators:
    """Of consumer groups and of transactions, and the same for every role, wherever their shard is."""

    groups: GroupCoordinator
    transactions: Transactions
    transaction_access: TransactionAccess
    group_access: GroupAccess


def compose_coordinators(
    context: BrokerContext,
    broker: Broker,
    registry: Registry,
    how: Composition,
    *,
    authoriser: Authoriser,
    catalog: Catalog,
    bundles: BundleMoves | None,
    peers: PeerCalls | None,
    handlers: PeerHandlers,
    stack: AsyncExitStack,
) -> Coordinators:
    """Start them, and answer other brokers for them."""
    clock = context.runtime.clock
    wanted = how.coordinator_shards or (1 if peers is None else CLUSTER_SHARDS)
    count = ShardCount(context.streams.meta, wanted, bundles)
    shards = CoordinatorShards(broker, count, several_brokers=peers is not None)
    parts = compose_parts(broker, clock, peers, handlers)
    groups = _groups(context, parts, shards, catalog, how)
    groups.start()
    stack.push_async_callback(groups.close)
    transactions = compose_transactions(
        context,
        parts,
        shards,
        groups.offsets,
        may_use_all=authoriser.is_superuser,
        settings=how.transactions,
        ids_at_once=how.producer_ids,
        peers=peers,
        handlers=handlers,
    )
    transactions.start()
    stack.push_async_callback(transactions.close)
    elsewhere = None if peers is None else Elsewhere(peers)
    transaction_access = TransactionAccess(transactions, authoriser, elsewhere)
    TransactionsService(transaction_access).answer(handlers)
    group_access = GroupAccess(groups, authoriser, registry, clock, peers)
    group_access.answer(handlers)
    return Coordinators(groups, transactions, transaction_access, group_access)


def compose_parts(broker: Broker, clock: Clock, peers: PeerCalls | None, handlers: PeerHandlers | None) -> Parts:
    """The partitions that coordinators have to do with: of all brokers, if there are others."""
    local = LocalParts(broker, clock)
    if handlers is not None:
        PartsService(local).answer(handlers)
    return local if peers is None else RoutedParts(local, broker, peers, clock)


def compose_transactions(
    context: BrokerContext,
    parts: Parts,
    shards: CoordinatorShards,
    offsets: GroupOffsets,
    *,
    may_use_all: Callable[[str], bool] = lambda role: True,
    settings: TransactionSettings | None = None,
    ids_at_once: int,
    peers: PeerCalls | None = None,
    handlers: PeerHandlers | None = None,
) -> Transactions:
    """Transactions, of whatever protocol has them."""
    clock = context.runtime.clock
    taking_part = TakingPart(parts, offsets, shards, peers)
    transactions = Transactions(
        clock,
        shards,
        takes_part=taking_part,
        positions=offsets,
        ids=IdBlocks(clock, context.streams.meta, size=ids_at_once, counter=keys.PRODUCER_COUNTER),
        gate=context.transactions,
        settings=settings,
        may_use_all=may_use_all,
        peers=peers,
    )
    if handlers is not None:
        taking_part.answer(handlers)
        transactions.answer(handlers)
    return transactions


def _groups(
    context: BrokerContext, parts: Parts, shards: CoordinatorShards, catalog: Catalog, how: Composition
) -> GroupCoordinator:
    """Consumer groups, of whatever protocol has them."""
    return GroupCoordinator(
        context.runtime,
        shards,
        GroupOffsets(parts, shards, context.runtime.clock),
        context.members,
        how.groups,
        topics_read=partial(topics_read, catalog),
        guard=context.guard,
    )
