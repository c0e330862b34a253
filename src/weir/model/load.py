"""What a broker says of its work, for whoever balances a cluster: measured, per second, by bundle."""

from dataclasses import dataclass

#: A report names at most this many bundles, the busiest; the rest counts in the sums alone.
MAX_REPORTED_BUNDLES = 1000


@dataclass(frozen=True, slots=True)
class BundleLoad:
    """Messages and bytes per second that a bundle's topics take in and give out, and how many topics are loaded.
    `bundle` as claims write it: `tenant/namespace/0x00000000_0x40000000`."""

    bundle: str
    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0
    topics: int = 0

    @property
    def namespace(self) -> str:
        """`tenant/namespace`."""
        return self.bundle.rpartition("/")[0]

    @property
    def messages(self) -> float:
        """Per second, in and out."""
        return self.messages_in + self.messages_out

    @property
    def bytes(self) -> float:
        """Per second, in and out."""
        return self.bytes_in + self.bytes_out


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """A broker's work as a whole. `cpu`: share of the one core that its loop can use; `memory`: share of what it
    may have; both can pass 1. `bundle_count`: of all that it holds, those among them that `bundles` leaves out.
    `draining`: it is to hold nothing soon, so it is given nothing."""

    broker_id: str
    bundles: tuple[BundleLoad, ...] = ()
    cpu: float = 0.0
    memory: float = 0.0
    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0
    bundle_count: int = 0
    draining: bool = False

    @property
    def messages(self) -> float:
        """Per second, in and out."""
        return self.messages_in + self.messages_out

    @property
    def bytes(self) -> float:
        """Per second, in and out."""
        return self.bytes_in + self.bytes_out


@dataclass(frozen=True, slots=True)
class BalanceLeader:
    """Which broker balances the cluster. `term` differs from one election to the next."""

    broker_id: str
    term: str
