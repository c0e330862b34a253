"""The key layout of the metadata store; no other module knows a key's path."""

from urllib.parse import quote

from weir.model.cluster import BundleName
from weir.model.ids import BookieId, LedgerId
from weir.model.topics import Domain, NamespaceName, TopicName

#: The last issued ledger id, as decimal text.
LEDGER_COUNTER = "/weir/ledger-id"
#: The last id issued to an idempotent producer, as decimal text.
PRODUCER_COUNTER = "/weir/producer-id"
#: The number of coordinator shards, as decimal text: set once, for good.
COORDINATOR_SHARDS = "/weir/coordinator-shards"
#: The cluster id for Kafka's clients, as text: set at the first start, for good.
CLUSTER_ID = "/weir/cluster-id"
#: The key that seals sessions of the console, the same for all brokers.
CONSOLE_KEY = "/weir/console-key"
#: The secret that access keys derive from, the same for all brokers.
ACCESS_KEYS = "/weir/access-keys"
#: Certificate and key, as PEM, of brokers without a data folder and without a configured certificate.
OWN_CERTIFICATE = "/weir/own-certificate"
LEDGERS = "/weir/ledgers/"
#: Bookies that accept entries, each under its lease; value: `weir.wire.metadata` BookieInfo.
BOOKIES_WRITABLE = "/weir/bookies/writable/"
#: Bookies that only serve reads for now, each under its lease.
BOOKIES_READ_ONLY = "/weir/bookies/read-only/"
#: Bookies in decommissioning.
BOOKIES_LEAVING = "/weir/bookies/leaving/"
#: The disk identity of a bookie id, set for good.
COOKIES = "/weir/bookies/cookies/"
#: Ledgers with a lost replica; value: the lost bookies.
UNDERREPLICATED = "/weir/underreplicated/"
#: Lock of the one node that checks for lost bookies, under its lease.
AUDITOR = "/weir/auditor"
#: Lock of the worker that repairs the ledger, under its lease.
REPAIR_LOCKS = "/weir/repair-locks/"
#: Entries that readers of a ledger skipped because every replica is damaged.
LOST_ENTRIES = "/weir/lost-entries/"
#: The request of a running cluster backup to the brokers, under the lease of the backup; and the answer of each.
BACKUP = "/weir/backup/"
BACKUP_REQUEST = f"{BACKUP}request"
BACKUP_ANSWERS = f"{BACKUP}answers/"
#: Chains of ledgers, one per stream.
STREAMS = "/weir/streams/"
#: Data for topic lists about topics that no broker has loaded, by stream name.
TOPIC_OVERVIEWS = "/weir/topic-overviews/"


def ledger(ledger_id: LedgerId) -> str:
    """The key of a ledger's metadata; zero-padded so that a listing sorts by id."""
    return f"{LEDGERS}{ledger_id:020d}"


def ledger_id_of(key: str) -> LedgerId:
    """The ledger of a key under LEDGERS, UNDERREPLICATED, REPAIR_LOCKS or LOST_ENTRIES."""
    return LedgerId(int(key.rpartition("/")[2]))


def bookie_writable(bookie_id: BookieId) -> str:
    return BOOKIES_WRITABLE + bookie_id


def bookie_read_only(bookie_id: BookieId) -> str:
    return BOOKIES_READ_ONLY + bookie_id


def bookie_leaving(bookie_id: BookieId) -> str:
    """Exists while the bookie is in decommissioning: it gets no new ledgers, and repair moves its ledgers
    elsewhere."""
    return BOOKIES_LEAVING + bookie_id


def bookie_id_of(key: str) -> BookieId:
    return BookieId(key.rpartition("/")[2])


def cookie(bookie_id: BookieId) -> str:
    return COOKIES + bookie_id


def underreplicated(ledger_id: LedgerId) -> str:
    return f"{UNDERREPLICATED}{ledger_id:020d}"


def repair_lock(ledger_id: LedgerId) -> str:
    return f"{REPAIR_LOCKS}{ledger_id:020d}"


def lost_entries(ledger_id: LedgerId) -> str:
    return f"{LOST_ENTRIES}{ledger_id:020d}"


def backup_answer(request: str, step: str, broker_id: str, part: int) -> str:
    return f"{BACKUP_ANSWERS}{request}/{step}/{broker_id}/{part:06d}"


def stream(name: str) -> str:
    return STREAMS + name


def topic_overview(stream_name: str) -> str:
    return TOPIC_OVERVIEWS + stream_name


# --- broker -------------------------------------------------------------------------------------------------
# Names of tenants, namespaces and topics contain no slash, so every path below is unambiguous.

#: Clusters; the first start creates its own after the default tenant and namespace, so it also marks that these
#: were created once.
CLUSTERS = "/weir/clusters/"
TENANTS = "/weir/tenants/"
NAMESPACES = "/weir/namespaces/"
TOPICS = "/weir/topics/"
#: The topic of an id, as text; and topics in deletion. The key after them marks both as complete.
TOPIC_IDS = "/weir/topic-ids/"
DOOMED_TOPICS = "/weir/doomed-topics/"
TOPIC_INDEX = "/weir/topic-index"
#: Topics, each partition separately, that may have prepared (half) messages without a decision.
HALF_TOPICS = "/weir/half-topics/"
#: Permissions of roles, per tenant, namespace or topic.
GRANTS = "/weir/grants/"
#: The tenant of a role, for names of groups, transactional ids and sinks, as text.
ROLE_TENANTS = "/weir/role-tenants/"
#: Users with passwords.
USERS = "/weir/users/"
#: Catalogs of the lake, which superusers define.
LAKE_CATALOGS = "/weir/lake-catalogs/"
#: Versions of schemas, per topic.
SCHEMAS = "/weir/schemas/"
#: Durable exchanges and bindings, per namespace.
EXCHANGES = "/weir/exchanges/"
#: Locks of the brokers that act for all brokers, each under the lease of its holder.
LEADERS = "/weir/leaders/"
#: The broker that moves and splits bundles.
BALANCE_LEADER = f"{LEADERS}balance"
#: Running brokers, each under its lease.
BROKERS = "/weir/brokers/"
#: The number of a broker, set for good, as decimal text; and the next free one.
BROKER_NUMBERS = "/weir/broker-numbers/"
NEXT_BROKER_NUMBER = "/weir/next-broker-number"
#: The bundle boundaries of a namespace; without a key, the number in `weir.model.cluster`, all of the same size.
BOUNDARIES = "/weir/bundles/"
#: The broker of a bundle. Claims persist, since their epochs do.
CLAIMS = "/weir/claims/"
#: Streams that SQL defines, and the last reports of their worker.
SQL_STREAMS = "/weir/sql/streams/"
SQL_PROGRESS = "/weir/sql/progress/"
#: Dropped streams, until their worker has cleaned up after them.
SQL_DROPPED = "/weir/sql/dropped/"
#: The one process that runs the SQL streams.
SQL_RUNNER = "/weir/sql/runner"
#: Connectors, the last reports of their worker, removed connectors that may have left resources, and the one
#: process that runs connectors.
CONNECTORS = "/weir/connect/connectors/"
CONNECTOR_PROGRESS = "/weir/connect/progress/"
CONNECTORS_REMOVED = "/weir/connect/removed/"
CONNECTOR_RUNNER = "/weir/connect/runner"

#: Deployed functions, the last reports of their worker, and the one process that runs functions.
FUNCTIONS = "/weir/functions/deployed/"
FUNCTION_STATS = "/weir/functions/stats/"
FUNCTION_RUNNER = "/weir/functions/runner"

#: Replays by query, under the topic of their messages.
REPLAYS = "/weir/replays/"


def cluster(name: str) -> str:
    return CLUSTERS + name


def tenant(name: str) -> str:
    return TENANTS + name


def namespaces_of(tenant: str) -> str:
    """Prefix of a tenant's namespaces."""
    return f"{NAMESPACES}{tenant}/"


def namespace(name: NamespaceName) -> str:
    return f"{NAMESPACES}{name}"


def topics_of(namespace: NamespaceName) -> str:
    """Prefix of a namespace's topics."""
    return f"{TOPICS}{namespace}/"


def topic(name: TopicName) -> str:
    """The key of a topic as a whole, for any of its partitions."""
    return f"{TOPICS}{_path(name.base)}"


def topic_of(key: str) -> TopicName:
    """The topic of a key under TOPICS."""
    tenant, namespace, domain, local = key.removeprefix(TOPICS).split("/", 3)
    return TopicName(NamespaceName(tenant, namespace), local, Domain(domain))


def topic_id(topic_id: bytes) -> str:
    return TOPIC_IDS + topic_id.hex()


def doomed_topic(name: TopicName) -> str:
    return f"{DOOMED_TOPICS}{_path(name.base)}"


def half_topic(name: TopicName) -> str:
    return f"{HALF_TOPICS}{_path(name)}"


def half_topic_of(key: str) -> TopicName:
    """The topic, or partition, of a key under HALF_TOPICS."""
    tenant, namespace, domain, local = key.removeprefix(HALF_TOPICS).split("/", 3)
    return TopicName.parse(f"{domain}://{tenant}/{namespace}/{local}")


def tenant_grants(tenant: str) -> str:
    return GRANTS + tenant


def namespace_grants(namespace: NamespaceName) -> str:
    return f"{GRANTS}{namespace}"


def topic_grants_of(namespace: NamespaceName) -> str:
    """Prefix of the grants on a namespace's topics."""
    return f"{GRANTS}{namespace}/"


def topic_grants(name: TopicName) -> str:
    return f"{GRANTS}{_path(name.base)}"


def user(name: str) -> str:
    return USERS + _quoted(name)


def lake_catalog(name: str) -> str:
    return LAKE_CATALOGS + _quoted(name)


def exchanges_of(namespace: NamespaceName) -> str:
    """Prefix of a namespace's exchanges and bindings; exchanges come before bindings."""
    return f"{EXCHANGES}{namespace}/"


def exchange(namespace: NamespaceName, name: str) -> str:
    return f"{exchanges_of(namespace)}exchange/{_quoted(name)}"


def bindings_from(namespace: NamespaceName, source: str) -> str:
    """Prefix of the bindings of an exchange."""
    return f"{exchanges_of(namespace)}from/{_quoted(source)}/"


def binding(namespace: NamespaceName, source: str, digest: str) -> str:
    """`digest` distinguishes the source's bindings."""
    return f"{bindings_from(namespace, source)}{digest}"


def schemas_of(name: TopicName) -> str:
    """Prefix of a topic's schemas; partitions share those of their topic."""
    return f"{SCHEMAS}{_path(name.base)}/"


def schema(name: TopicName, version: int) -> str:
    """The key of a schema version; zero-padded, so that a listing sorts by version."""
    return f"{schemas_of(name)}{version:020d}"


def broker(broker_id: str) -> str:
    return BROKERS + broker_id


def broker_number(broker_id: str) -> str:
    return BROKER_NUMBERS + broker_id


def boundaries(namespace: NamespaceName) -> str:
    return f"{BOUNDARIES}{namespace}"


def claim(bundle: BundleName) -> str:
    return f"{CLAIMS}{bundle}"


def bundle_of(key: str) -> BundleName:
    """The bundle of a key under CLAIMS; InvalidNameError."""
    return BundleName.parse(key.removeprefix(CLAIMS))


def sql_stream(name: TopicName) -> str:
    return f"{SQL_STREAMS}{name.namespace}/{name.local}"


def sql_progress(name: TopicName) -> str:
    return f"{SQL_PROGRESS}{name.namespace}/{name.local}"


def replay(topic: TopicName, replay_id: str) -> str:
    return f"{REPLAYS}{topic.namespace}/{topic.local}/{replay_id}"


def sql_dropped(stream_id: str) -> str:
    return SQL_DROPPED + stream_id


def connector(name: TopicName) -> str:
    return f"{CONNECTORS}{name.namespace}/{name.local}"


def connector_progress(name: TopicName) -> str:
    return f"{CONNECTOR_PROGRESS}{name.namespace}/{name.local}"


def connector_removed(connector_id: str) -> str:
    return CONNECTORS_REMOVED + connector_id


def function(name: TopicName) -> str:
    return f"{FUNCTIONS}{name.namespace}/{name.local}"


def function_stats(name: TopicName) -> str:
    return f"{FUNCTION_STATS}{name.namespace}/{name.local}"


def _quoted(name: str) -> str:
    """An arbitrary name, encoded as one part of a path."""
    return quote(name, safe="", errors="surrogatepass")


def _path(name: TopicName) -> str:
    return f"{name.namespace}/{name.domain.value}/{name.local_with_partition}"
