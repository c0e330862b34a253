"""What stands behind every Kafka session."""

from dataclasses import dataclass, field

from weir.broker.api import Authoriser, Balance, Broker, Guard, Registry, RoleGroups, RoleTransactions
from weir.gateway.kafka.catalog import Catalog
from weir.gateway.kafka.connection.settings import KafkaSettings
from weir.gateway.kafka.fetch.moments import Moments
from weir.gateway.kafka.produce.delaying import Delaying
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
