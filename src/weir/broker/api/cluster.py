"""Cluster administration: bundles (hash ranges of a namespace's topic names) and their owners, bookies, and load
balancing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from weir.model.cluster import BrokerLoad, BundleName
from weir.model.topics import NamespaceName, TopicName


@dataclass(frozen=True, slots=True)
class BundleInfo:
    """A bundle and its owner. `owner`: a broker's id, "" if the bundle has no owner now: the first request for one
    of its topics then assigns it to the broker that all brokers would choose. `epoch` grows with each change of
    owner, and never decreases: it is the leader epoch of the bundle's topics. `next`: the receiving broker during
    a handover. The load report of the owner describes the bundle's load."""

    name: BundleName
    owner: str = ""
    epoch: int = 0
    next: str = ""


class Bundles(Protocol):
    """Bundles of all namespaces. Synchronous methods answer from memory, which may be a moment out of date."""

    def bundle_of(self, topic: TopicName) -> BundleName:
        """The bundle of the topic. Each partition belongs to the bundle of its own name."""

    def of(self, namespace: NamespaceName) -> Sequence[BundleInfo]:
        """Every bundle of the namespace, in the order of their ranges."""

    def all(self) -> Sequence[BundleInfo]:
        """Every bundle that has or had an owner, of every namespace."""

    def info(self, bundle: BundleName) -> BundleInfo:
        """The bundle and its owner; NotAllowedError if its namespace has no such bundle."""

    async def hand_over(self, bundle: BundleName, to: str) -> None:
        """Hand a bundle of this broker with its loaded topics over to another broker, by its id. The call returns
        when the other broker owns the bundle. NotOwnerError if this broker does not own it; NotAllowedError if no
        such broker exists or if it may not own the bundle."""

    async def let_go(self, bundle: BundleName) -> None:
        """Close the bundle's topics and release its ownership; the next request for one of its topics assigns it
        to this broker or another. NotOwnerError if this broker does not own it."""

    async def split(self, bundle: BundleName, at: int | None = None) -> tuple[BundleName, BundleName]:
        """Split a bundle of this broker, in the middle or at a hash. Its topics stay loaded, and this broker owns
        both new bundles. NotOwnerError if this broker does not own it."""

    async def divide(self, namespace: NamespaceName, bundles: int) -> None:
        """Divide a namespace into this many bundles of about the same size. NotAllowedError if the namespace is
        already divided or if one of its bundles has an owner."""

    async def drain(self, reason: str = "the broker is drained") -> None:
        """Hand all bundles over to the other brokers, and accept no bundles from now on."""

    async def resume(self) -> None:
        """Accept bundles again after `drain`."""

    @property
    def draining(self) -> bool:
        """Whether this broker accepts no bundles."""


@dataclass(frozen=True, slots=True)
class BookieStatus:
    """A bookie: its address, its state, and the number of ledgers with copies on it. `state`: `writable`,
    `read-only`, `lost`, `leaving` (the decommission runs) or `empty` (the decommission is complete and the bookie
    can stop)."""

    bookie_id: str
    address: str
    rack: str
    state: str
    ledgers: int


@dataclass(frozen=True, slots=True)
class DecommissionProgress:
    """`left`: ledgers that still have copies on the bookie; `problem`: why moving a ledger failed, lately."""

    bookie_id: str
    left: int
    problem: str = ""


class StorageAdmin(Protocol):
    """The storage below the brokers, for cluster administrators."""

    async def leader(self) -> str:
        """The id of the broker that balances the cluster; "" while none does."""

    async def under_replicated(self) -> int:
        """The number of ledgers with fewer copies than required, as far as known."""

    async def bookies(self) -> Sequence[BookieStatus]: ...

    async def decommission(self, bookie: str) -> DecommissionProgress:
        """Move all data off a bookie: it receives no new ledgers, and its entries are copied to other bookies. The
        call returns at once; a repeated call continues the work. NotAllowedError if too few other bookies
        remain."""

    async def progress(self, bookie: str) -> DecommissionProgress: ...

    async def recommission(self, bookie: str) -> None:
        """Let the bookie accept ledgers again."""


class Balance(Protocol):
    def leader(self) -> str:
        """The id of the broker that moves and splits bundles, as far as this broker knows; "" while none does. The
        loss of that broker stops balancing, never service."""

    @property
    def leading(self) -> bool:
        """Whether this broker is the leader."""

    async def loads(self) -> Sequence[BrokerLoad]:
        """The current load reports of all brokers that answer."""
