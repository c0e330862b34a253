"""The services that all Kafka sessions of a listener share."""

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
    """Shared by all sessions of a listener. Services that the broker does not offer are None."""

    clock: Clock
    broker: Broker
    registry: Registry
    catalog: Catalog
    #: Checks whether a role may perform an action on a topic; raises NotAuthorisedError.
    guard: Guard
    #: The same checks and more, for the admin APIs.
    authoriser: Authoriser
    settings: KafkaSettings
    #: Finds offsets by time.
    moments: Moments = field(default_factory=Moments)
    #: Applies delay headers.
    delaying: Delaying = field(default_factory=Delaying)
    groups: RoleGroups | None = None
    transactions: RoleTransactions | None = None
    balance: Balance | None = None
