"""What stands behind every Kafka session."""

from dataclasses import dataclass, field

from weir.broker.api.broker import Broker
from weir.broker.api.cluster import Balance
from weir.broker.api.groups import RoleGroups
from weir.broker.api.metadata import Registry
from weir.broker.api.security import Authoriser, Guard
from weir.broker.api.transactions import RoleTransactions
from weir.gateway.kafka.fetch.timestamp_lookup import Moments
from weir.gateway.kafka.metadata import Catalog
from weir.gateway.kafka.produce.delay_headers import Delaying
from weir.gateway.kafka.settings import KafkaSettings
from weir.runtime.interfaces import Clock


@dataclass(frozen=True, slots=True)
class Services:
    """Shared by all sessions of a listener. What a broker does not offer is None."""

    clock: Clock
    broker: Broker
    registry: Registry
    catalog: Catalog
    #: May this role do that with this topic? Raises NotAuthorisedError.
    guard: Guard
    #: The same and more, for administrators' calls.
    authoriser: Authoriser
    settings: KafkaSettings
    #: Where moments lie in topics.
    moments: Moments = field(default_factory=Moments)
    #: Finds the records that shall be delayed.
    delaying: Delaying = field(default_factory=Delaying)
    groups: RoleGroups | None = None
    transactions: RoleTransactions | None = None
    balance: Balance | None = None
