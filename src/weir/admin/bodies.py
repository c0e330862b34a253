"""Bodies of clusters, tenants, namespaces, topics and lookups, with Pulsar's field names."""

from typing import Literal

from msgspec import Struct, field

from weir.admin.routing import Int, Long

ActionName = Literal["produce", "consume", "functions", "sources", "sinks", "packages"]
Permissions = dict[str, list[ActionName]]
Properties = dict[str, str]


class ClusterData(Struct):
    serviceUrl: str | None = None
    serviceUrlTls: str | None = None
    brokerServiceUrl: str | None = None
    brokerServiceUrlTls: str | None = None


class TenantInfo(Struct):
    adminRoles: list[str] = field(default_factory=list)
    allowedClusters: list[str] = field(default_factory=list)


class PartitionedTopicMetadata(Struct):
    partitions: Int
    properties: Properties | None = None


class MessageIdBody(Struct):
    """A message's place; the largest numbers stand for the end, -1 for the beginning."""

    ledgerId: Long
    entryId: Long
    partitionIndex: Int = -1
    batchIndex: Int = -1


class ResetCursorData(Struct):
    """A place to move to. `isExcluded`: right after it."""

    ledgerId: Long = 2**63 - 1
    entryId: Long = 2**63 - 1
    partitionIndex: Int = -1
    batchIndex: Int = -1
    isExcluded: bool = False
    properties: Properties | None = None


class LongRunningProcessStatus(Struct):
    status: Literal["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"]
    lastError: str = ""


class LookupData(Struct):
    brokerUrl: str | None = None
    brokerUrlTls: str | None = None
    httpUrl: str | None = None
    httpUrlTls: str | None = None
    nativeUrl: str | None = None


class BundlesData(Struct):
    """Ranges of a namespace's topics by the hash of their names; for a new namespace the number is enough."""

    boundaries: list[str] = field(default_factory=list)
    numBundles: Int = 0


class BrokerInfoBody(Struct):
    brokerId: str
    serviceUrl: str


class InstanceBody(Struct):
    """Tells one start of a server from every other."""

    instance: str


class OwnershipStatus(Struct):
    """Of a bundle that a broker has."""

    broker_assignment: Literal["primary", "secondary", "shared"] = "shared"
    is_controlled: bool = False
    is_active: bool = True


class HeldMessage(Struct):
    """A batch that waits for its moment. `due`: milliseconds since 1970, null: until a decision."""

    id: str
    due: int | None
    messages: int
    bytes: int


class HeldPage(Struct):
    """`next`: what to give as `after` for the following ones; null at the end."""

    held: list[HeldMessage]
    next: str | None = None


class HeldCountBody(Struct):
    batches: int
    messages: int
