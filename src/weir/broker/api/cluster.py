"""Which broker serves which topics: by bundle, a range of a namespace's topic names by hash.

Who balances the cluster, and how much work its brokers have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from weir.model.cluster import BrokerLoad, BundleName
from weir.model.topics import NamespaceName, TopicName


@dataclass(frozen=True, slots=True)
class BundleInfo:
    """A bundle and who has it. `owner`: a broker's id, "" if nobody has it now: then it goes to the broker that
    all of them would choose as soon as somebody asks for one of its topics. `epoch` grows with each change of
    hands, and never goes back: it is the leader epoch of the bundle's topics. `next`: who is to have it next,
    while it is handed over. What it does is in its broker's load report."""

    name: BundleName
    owner: str = ""
    epoch: int = 0
    next: str = ""


class Bundles(Protocol):
    """From memory, where nothing is awaited: it may be a moment out of date."""

    def bundle_of(self, topic: TopicName) -> BundleName:
        """The one that the topic is in. Each partition is in one by its own name."""

    def of(self, namespace: NamespaceName) -> Sequence[BundleInfo]:
        """Every bundle of the namespace, in the order of their ranges."""

    def all(self) -> Sequence[BundleInfo]:
        """Every bundle that somebody has or had, of every namespace."""

    def info(self, bundle: BundleName) -> BundleInfo:
        """NotAllowedError if its namespace has no such bundle."""

    async def hand_over(self, bundle: BundleName, to: str) -> None:
        """Give a bundle of this broker's to another broker, by its id, with the topics that are loaded: done
        when that one has it. NotOwnerError if it is not this broker's; NotAllowedError if there is no such
        broker that may have it."""

    async def let_go(self, bundle: BundleName) -> None:
        """Close its topics here and let whoever is asked next have it, this broker or another. NotOwnerError if it
        is not this broker's."""

    async def split(self, bundle: BundleName, at: int | None = None) -> tuple[BundleName, BundleName]:
        """Make two of one of this broker's, in the middle or at a hash; its topics stay loaded, and both are this
        broker's. NotOwnerError if it is not this broker's."""

    async def divide(self, namespace: NamespaceName, bundles: int) -> None:
        """So many bundles of about the same size, for a namespace that was never divided and of which nobody has
        anything yet; NotAllowedError else."""

    async def drain(self, reason: str = "the broker is drained") -> None:
        """Hand everything over to the other brokers, and take nothing from now on."""

    async def resume(self) -> None:
        """Take bundles again after `drain`."""

    @property
    def draining(self) -> bool:
        """Whether this broker takes nothing new."""


@dataclass(frozen=True, slots=True)
class BookieStatus:
    """A bookie: where it is, whether it is `writable`, `read-only`, `lost`, `leaving` (being decommissioned) or
    `empty` (it was, and may be stopped), and how many ledgers have copies on it."""

    bookie_id: str
    address: str
    rack: str
    state: str
    ledgers: int


@dataclass(frozen=True, slots=True)
class DecommissionProgress:
    """`left`: ledgers that still have copies on the bookie; `problem`: why one could not be moved, lately."""

    bookie_id: str
    left: int
    problem: str = ""


class StorageAdmin(Protocol):
    """What lies below the brokers, for those who look after a cluster."""

    async def leader(self) -> str:
        """The broker that balances, by its id; "" while there is none."""

    async def under_replicated(self) -> int:
        """Ledgers that are known to have fewer copies than they should."""

    async def bookies(self) -> Sequence[BookieStatus]: ...

    async def decommission(self, bookie: str) -> DecommissionProgress:
        """Have a bookie hold nothing: no new ledger comes to it, what it has is copied to others. Comes back at
        once; asking again goes on with it. NotAllowedError if the others are too few."""

    async def progress(self, bookie: str) -> DecommissionProgress: ...

    async def recommission(self, bookie: str) -> None:
        """Let it take ledgers again."""


class Balance(Protocol):
    def leader(self) -> str:
        """The id of the broker that moves and splits bundles, as far as is known here; "" while there is none. The
        loss of it stops balance, never service."""

    @property
    def leading(self) -> bool:
        """Whether that is this broker."""

    async def loads(self) -> Sequence[BrokerLoad]:
        """What every broker that answers says of its work now."""
