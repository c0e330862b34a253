"""What is decided about a broker from outside, before it is put together."""

from collections.abc import Callable
from dataclasses import dataclass, field

from weir.broker import ports
from weir.broker.access.security import SecuritySettings
from weir.broker.access.tokens import TokenVerifier
from weir.broker.balance.balancer import BalanceSettings
from weir.broker.bundles.settings import OwnershipSettings
from weir.broker.groups.model import GroupSettings
from weir.broker.peers.settings import PeerLinks
from weir.broker.registry.topics import TopicLimits
from weir.broker.settings import BrokerSettings
from weir.broker.tracing import Tracing
from weir.broker.transactions.model import TransactionSettings
from weir.model.features import FEATURES
from weir.model.lake import LakeCatalog
from weir.model.policies import Policies
from weir.runtime.object_store import ObjectStores
from weir.stream.holding.settings import HoldingSettings
from weir.stream.settings import StreamSettings


@dataclass(frozen=True, slots=True)
class Composition:
    """What is decided about a broker from outside."""

    name: str
    #: Where its clients find it, by the name of the listener.
    listeners: dict[str, str] = field(default_factory=dict)
    #: What holds where nobody has said otherwise; what these leave open is as Weir has it.
    policies: Policies = field(default_factory=Policies)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    tokens: TokenVerifier | None = None
    #: What access keys are made of, beside the secret of tokens.
    access_secret: bytes = b""
    ownership: OwnershipSettings = field(default_factory=OwnershipSettings)
    streams: StreamSettings = field(default_factory=StreamSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    topics: TopicLimits = field(default_factory=TopicLimits)
    holding: HoldingSettings = field(default_factory=HoldingSettings)
    groups: GroupSettings = field(default_factory=GroupSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    #: What was just written and is kept in memory for those who read at the end, over all topics.
    tail_bytes: int = 1 << 20
    #: Shards of coordinators, where it is not said yet how many there are; None: one for a broker on its own,
    #: `CLUSTER_SHARDS` for several.
    coordinator_shards: int | None = None
    #: Where it stands.
    rack: str = ""
    #: Ids of producers that are taken from the metadata at a time.
    producer_ids: int = 1000
    #: Stands in for the one that goes by tokens and certificates.
    authenticator: ports.Authenticator | None = None
    #: Stands in for ownership by a lease in the metadata.
    owner: ports.Ownership | None = None
    #: How it speaks with the other brokers; None: it is on its own, and asks nobody but itself.
    peers: PeerLinks | None = None
    #: What it says that it can do.
    features: tuple[str, ...] = FEATURES
    #: The catalog of the lake that there is although no superuser has defined it.
    default_lake: LakeCatalog | None = None
    #: Stands in for the stores of the lake as the runtime reaches them.
    stores: ObjectStores | None = None
    #: Told at which step a ledger is on its way to the lake.
    reached: Callable[[str], None] = lambda step: None
    #: Its part in balance, if it speaks with other brokers; None: it is measured by nobody and leads nobody.
    balance: BalanceSettings | None = None
    #: Who hears of messages that carry a trace.
    tracing: Tracing | None = None
