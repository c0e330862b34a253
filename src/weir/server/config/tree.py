"""Everything that can be set about a Weir, as one typed tree.

The tree is for people. No part of Weir receives it: `weir.server.config.part_settings` makes each part's own small
settings of it.
"""
# ruff: noqa: RUF009  (`setting` is `dataclasses.field` with more to say)

from dataclasses import dataclass, field

from weir.model.policies import DEFAULT_RETENTION
from weir.server.addresses import Address
from weir.server.config.keys import (
    BOUND,
    BOUNDED_SIZE,
    COUNT,
    FLAG,
    HOST,
    MESSAGE_SIZE,
    NAMES,
    OPTIONAL_ADDRESS,
    SECONDS,
    SIZE,
    SYNC,
    TEXT,
    keys_of,
    one_of,
    setting,
)

KIB = 1024
MIB = 1024 * KIB
_LOCAL = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where clients come in."""

    pulsar: Address | None = setting(
        OPTIONAL_ADDRESS, Address(_LOCAL, 6650), "Pulsar's binary protocol; empty: not served in the clear."
    )
    pulsar_tls: Address | None = setting(
        OPTIONAL_ADDRESS, None, "Pulsar's binary protocol over TLS; needs tls.certificate and tls.key."
    )
    kafka: Address | None = setting(
        OPTIONAL_ADDRESS, Address(_LOCAL, 9092), "Kafka's protocol; empty: not served in the clear."
    )
    kafka_tls: Address | None = setting(OPTIONAL_ADDRESS, None, "Kafka's protocol over TLS.")
    amqp: Address | None = setting(
        OPTIONAL_ADDRESS, Address(_LOCAL, 5672), "AMQP 0-9-1, RabbitMQ's protocol; empty: not served in the clear."
    )
    amqps: Address | None = setting(OPTIONAL_ADDRESS, None, "AMQP 0-9-1 over TLS; RabbitMQ's port is 5671.")
    rocketmq: Address | None = setting(
        OPTIONAL_ADDRESS,
        Address(_LOCAL, 8081),
        "RocketMQ 5's gRPC protocol, in the clear and over TLS.",
    )
    rocketmq_tls: Address | None = setting(OPTIONAL_ADDRESS, None, "RocketMQ 5's gRPC protocol over TLS only.")
    http: Address | None = setting(
        OPTIONAL_ADDRESS, Address(_LOCAL, 8080), "Admin REST, lookup, metrics and health; empty: not in the clear."
    )
    https: Address | None = setting(OPTIONAL_ADDRESS, None, "The same over TLS.")
    peer: Address | None = setting(
        OPTIONAL_ADDRESS, None, "The other brokers of a cluster; empty: this broker is on its own."
    )
    advertised_host: str = setting(
        HOST, "", "The host name that clients are told in lookups; empty: the one that is listened on."
    )
    port_offset: int = setting(
        COUNT, 0, "Added to the port of each listener, except port 0; as weir up --port-offset."
    )


@dataclass(frozen=True, slots=True)
class Storage:
    """How messages are kept."""

    sync: float | None = setting(
        SYNC,
        None,
        "always: a message is on the disk before it is acknowledged; periodic:MILLISECONDS: soon after.",
    )
    cache_bytes: int = setting(
        SIZE, 64 * MIB, "Memory for the newest messages of all topics, for consumers that keep up."
    )
    write_cache_bytes: int = setting(
        SIZE, 64 * MIB, "Memory for entries that are journalled but not in an entry log yet."
    )
    read_cache_bytes: int = setting(SIZE, 32 * MIB, "Memory for entries that were read from the disk.")
    lake_cache_bytes: int = setting(SIZE, 64 * MIB, "Memory for what was read from ledgers in the lake.")
    journal_file_bytes: int = setting(SIZE, 64 * MIB, "The size of a journal file; used ones are written again.")
    flush_interval: float = setting(
        SECONDS, 60.0, "Entries go from the journal to the entry logs at least so often."
    )
    low_water_bytes: int = setting(SIZE, 256 * MIB, "Below this much free disk space nothing new is taken.")
    high_water_bytes: int = setting(
        SIZE, 512 * MIB, "Above this much free disk space new messages are taken again."
    )
    ledger_bytes: int = setting(SIZE, 256 * MIB, "A topic begins a new ledger when its last one holds so much,")
    ledger_entries: int = setting(COUNT, 100_000, "or so many entries,")
    ledger_age: float = setting(SECONDS, 4 * 3600.0, "or is so old; trimming removes whole ledgers.")
    quorum: str = setting(
        TEXT,
        "",
        "Bookies per ledger, copies of an entry, and how many of them it is acknowledged by, as in 3/3/2; empty: "
        "one for weir up, 2/2/2 for weir broker.",
    )
    cursor_interval: float = setting(SECONDS, 0.2, "Acknowledgements are written to the disk so often, together.")


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """How topics are served."""

    in_flight_bytes: int = setting(
        SIZE, 64 * MIB, "Published bytes that are not stored yet, over all topics; above it producers wait."
    )
    queue_memory: int = setting(
        SIZE,
        256 * MIB,
        "Messages of AMQP's queues in memory, over all of them; above it their publishers wait. Transient "
        "messages of durable queues have three quarters of it; above that they are written.",
    )
    delivery_bytes: int = setting(SIZE, MIB, "The most that one consumer gets in one go.")
    look_ahead: int = setting(
        COUNT, 20_000, "Key-shared: messages that may wait for a slow consumer while others are served past them."
    )
    maintenance_interval: float = setting(SECONDS, 5.0, "How often retention, expiry and quotas are looked after.")
    unload_after: float = setting(SECONDS, 300.0, "A topic that was not used for so long is unloaded from memory.")
    dedup_snapshot_every: int = setting(COUNT, 1000, "Deduplication: batches between two snapshots.")
    dedup_forget: float = setting(
        SECONDS, 6 * 3600.0, "A producer name that sent nothing for so long is forgotten."
    )


@dataclass(frozen=True, slots=True)
class Half:
    """Half messages: prepared, then committed or rolled back."""

    recovery: float = setting(
        SECONDS, 6.0, "Nobody is asked what became of one for so long, unless its producer says otherwise,"
    )
    check_interval: float = setting(SECONDS, 30.0, "then a live producer of its group is asked so often,")
    max_checks: int = setting(COUNT, 15, "and so many times; if nothing is heard by then, it is rolled back.")
    max_waiting: int = setting(COUNT, 100_000, "Half messages of a topic that are not decided, at the most.")
    remember: float = setting(
        SECONDS, 86_400.0, "How they were decided is remembered for so long after their ledger has gone."
    )


@dataclass(frozen=True, slots=True)
class Groups:
    """Consumer groups."""

    initial_delay: float = setting(
        SECONDS, 0.25, "How long the first member of an empty group waits for others before work is divided."
    )
    min_session: float = setting(SECONDS, 6.0, "The shortest time that a member may ask to be silent for,")
    max_session: float = setting(SECONDS, 1800.0, "and the longest.")
    max_members: int = setting(COUNT, 5_000, "Members per group.")
    max_per_role: int = setting(COUNT, 1_000, "Groups that a role may have made, unless it is a superuser.")
    retention: float = setting(SECONDS, 7 * 86_400.0, "Positions of a group without members are kept so long.")


@dataclass(frozen=True, slots=True)
class Auth:
    """Who may come in."""

    authenticate: bool = setting(FLAG, False, "Whether clients must say who they are.")
    authorise: bool = setting(FLAG, False, "Whether roles need grants; off: every role may do everything.")
    superusers: tuple[str, ...] = setting(NAMES, (), "Roles that may do everything.")
    anonymous_role: str = setting(TEXT, "anonymous", "The role of a client that need not say who it is.")
    allow_anonymous: bool = setting(
        FLAG, False, "Whether one may come without credentials, as the anonymous role, where others need them."
    )
    token_secret: str = setting(
        TEXT, "", "The secret that signs tokens (HMAC): base64:... or file:/path.", secret=True
    )
    token_public_key: str = setting(
        TEXT, "", "The public key of the tokens' signer (RSA, EC): file:/path, PEM or DER."
    )
    role_claim: str = setting(TEXT, "sub", "The claim of a token that names the role.")
    audience: str = setting(TEXT, "", "The audience that a token must be for; empty: any.")
    clock_leeway: float = setting(SECONDS, 0.0, "How far the clock of the tokens' signer may be off.")


@dataclass(frozen=True, slots=True)
class Tls:
    """For the listeners that end in _tls or s."""

    certificate: str = setting(TEXT, "", "The file with the server's certificate chain, PEM.")
    key: str = setting(TEXT, "", "The file with its private key, PEM.")
    client_ca: str = setting(
        TEXT, "", "The file with the CAs of client certificates; set: clients are asked for one."
    )
    client_auth: str = setting(
        one_of("required", "optional"),
        "required",
        "With client_ca: whether a client without a certificate is let in, to come with a token or as nobody.",
    )


@dataclass(frozen=True, slots=True)
class Cluster:
    """How nodes of a cluster find and know each other."""

    meta: str = setting(TEXT, "", "For weir broker: where the metadata is, etcd://host:port[,host:port].")
    name: str = setting(TEXT, "", "For weir broker: its name, its own for good; empty: the host's.")
    rack: str = setting(TEXT, "", "Where this broker stands; Kafka's clients prefer what is near.")
    secret: str = setting(
        TEXT, "", "What all nodes know and nobody else, 32 bytes or more: base64:... or file:/path.", secret=True
    )
    certificate: str = setting(TEXT, "", "The file with this node's certificate for other nodes, PEM.")
    key: str = setting(TEXT, "", "The file with its private key, PEM.")
    authority: str = setting(
        TEXT,
        "",
        "The file with the authority of the nodes' certificates, PEM; who has one belongs to the cluster.",
    )


@dataclass(frozen=True, slots=True)
class Balance:
    """How a cluster's brokers share their work; of no meaning without `listeners.peer`."""

    enabled: bool = setting(FLAG, True, "Whether this broker may become the leader that moves and splits bundles.")
    interval: float = setting(SECONDS, 30.0, "How often the leader looks at every broker's load.")
    start_percent: int = setting(
        COUNT, 10, "A broker that is so far from the mean, in hundredths of a broker, is evened out,"
    )
    stop_percent: int = setting(COUNT, 4, "until it is as near as this.")
    bundle_pause: float = setting(SECONDS, 600.0, "A bundle that was moved stays for so long.")
    moves_per_round: int = setting(COUNT, 10, "Moves that even out per round; more while more brokers are uneven.")
    split_topics: int = setting(COUNT, 1000, "A bundle with more loaded topics is split.")
    bundles_per_namespace: int = setting(COUNT, 128, "A namespace with so many bundles is not split any more.")
    broker_bytes: int = setting(
        SIZE, 0, "Bytes per second, in and out, that a broker's network can take; 0: CPU ends first."
    )
    memory_bytes: int = setting(SIZE, 0, "Memory that this broker may have; 0: what its container or machine has.")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that keep one client from hurting the others."""

    message_bytes: int = setting(
        MESSAGE_SIZE,
        16 * MIB,
        "The largest message (or batch) that a client may send; 128MiB at the most. A compressed batch may have "
        "four times as much when it is opened, but at least 64MiB and at most 129MiB.",
    )
    connections: int = setting(COUNT, 10_000, "Connections per Pulsar or Kafka listener at a time.")
    http_connections: int = setting(COUNT, 512, "Connections per HTTP listener at a time.")
    http_body_bytes: int = setting(SIZE, 8 * MIB, "The longest body of an HTTP request.")
    request_bytes: int = setting(
        SIZE, 100 * MIB, "The longest request of a Kafka client; it may hold batches for many partitions."
    )
    connection_bytes: int = setting(
        SIZE, 32 * MIB, "Bytes of one connection that wait to be stored; above it, it is not read."
    )
    received_bytes: int = setting(
        SIZE,
        256 * MIB,
        "Requests of all connections that are being received or served; above it, large ones are not read on.",
    )
    connection_consumers: int = setting(
        COUNT,
        10_000,
        "Consumers of one Pulsar or AMQP connection, also Pulsar's producers, and a tenth as many topic watchers;"
        " 0: any number.",
    )
    subscription_consumers: int = setting(
        COUNT, 10_000, "Consumers per subscription (or AMQP queue); 0: any number."
    )
    partitions: int = setting(COUNT, 10_000, "Partitions that a topic may have; 0: any number.")
    topics: int = setting(COUNT, 0, "Topics that a namespace may have; 0: any number.")
    topic_records: int = setting(
        COUNT, 10_000, "Records of topics that are kept in memory, besides those of topics in use."
    )
    idle: float = setting(SECONDS, 600.0, "A Kafka connection that was silent for so long is closed.")
    keep_alive: float = setting(
        SECONDS, 30.0, "A connection that was silent for so long is asked whether it lives."
    )
    drain_timeout: float = setting(SECONDS, 5.0, "How long a stop waits for what is under way.")


@dataclass(frozen=True, slots=True)
class Defaults:
    """The policies of namespaces and topics that have none of their own."""

    retention_minutes: int = setting(
        BOUND, DEFAULT_RETENTION.minutes, "Acknowledged messages stay so long; 0: not at all; -1: without end."
    )
    retention_megabytes: int = setting(
        BOUND, DEFAULT_RETENTION.megabytes, "Acknowledged messages stay up to so much; -1: without end."
    )
    message_ttl: float = setting(SECONDS, 0.0, "Unacknowledged messages expire after so long; 0: never.")
    backlog_bytes: int = setting(BOUNDED_SIZE, -1, "A topic's backlog quota; -1: none.")
    backlog_seconds: int = setting(BOUND, -1, "The age that the oldest unacknowledged message may have; -1: any.")
    backlog_action: str = setting(
        one_of("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
        "producer_request_hold",
        "What happens when the backlog quota is exceeded.",
    )
    deduplication: bool = setting(FLAG, False, "Whether messages that a producer sends twice are stored once.")
    auto_create_topics: bool = setting(FLAG, True, "Whether a topic that a client names comes to be.")
    auto_create_partitions: int = setting(COUNT, 0, "With how many partitions; 0: not partitioned.")
    auto_create_subscriptions: bool = setting(
        FLAG, True, "Whether a subscription that a consumer names comes to be."
    )
    max_producers: int = setting(COUNT, 0, "Producers per topic; 0: any number.")
    max_consumers: int = setting(COUNT, 0, "Consumers per topic; 0: any number.")
    max_subscriptions: int = setting(COUNT, 0, "Subscriptions per topic; 0: any number.")
    max_unacked_per_consumer: int = setting(
        COUNT, 50_000, "Unacknowledged messages per shared consumer; 0: any number."
    )
    max_unacked_per_subscription: int = setting(
        COUNT, 200_000, "Unacknowledged messages per shared subscription; 0: any number."
    )


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    """Weir in a browser."""

    enabled: bool = setting(FLAG, True, "Whether the console is served, at / of the HTTP listeners.")


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """A process beside `weir up` that runs what is defined in Weir, and how it comes in."""

    run: bool = setting(FLAG, False, "Whether weir up runs it beside the broker.")
    url: str = setting(TEXT, "", "The broker that it asks; empty: this one, by listeners.http or listeners.https.")
    token: str = setting(
        TEXT,
        "",
        "Its token, of a superuser, or file:/path; empty: made with auth.token_secret, where that is needed.",
        secret=True,
    )
    ca: str = setting(TEXT, "", "The file with the CAs that it trusts, PEM; empty: the system's.")
    certificate: str = setting(
        TEXT, "", "Its own certificate, PEM, of a superuser, where clients are asked for one."
    )
    key: str = setting(TEXT, "", "The private key of its certificate, PEM; empty: in the same file.")


@dataclass(frozen=True, slots=True)
class Streams(RunnerConfig):
    """The process that runs SQL's streams, beside `weir up`."""

    run: bool = setting(
        FLAG, False, "Whether weir up runs the streams' runner beside the broker, as with --streams; needs Spark."
    )
    checkpoints: str = setting(TEXT, "", "Where it keeps what it needs to go on; empty: the folder sql in data.")
    master: str = setting(TEXT, "local[*]", "Where Spark runs the queries.")
    memory: str = setting(TEXT, "1g", "Memory of Spark's driver.")


@dataclass(frozen=True, slots=True)
class FunctionsConfig(RunnerConfig):
    """The process that runs functions, beside `weir up`."""

    run: bool = setting(
        FLAG, False, "Whether weir up runs the functions' runner beside the broker, as with --functions."
    )
    checkpoints: str = setting(
        TEXT, "", "Where functions on Spark keep what they need to go on; empty: the folder functions in data."
    )
    deployers: tuple[str, ...] = setting(
        NAMES, (), "Roles that may deploy functions, superusers all of them; empty: every superuser."
    )


@dataclass(frozen=True, slots=True)
class Connect(RunnerConfig):
    """The process that runs connectors, beside `weir up`."""

    run: bool = setting(
        FLAG, False, "Whether weir up runs the connectors' runner beside the broker, as with --connect."
    )


@dataclass(frozen=True, slots=True)
class Log:
    """What it says while it runs."""

    level: str = setting(
        one_of("debug", "info", "warning", "error"), "warning", "The least important message to log."
    )
    format: str = setting(one_of("logfmt", "json"), "logfmt", "How a log line is written, to standard error.")


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """OpenTelemetry, where its SDK is installed."""

    endpoint: str = setting(TEXT, "", "Where a collector takes OTLP over HTTP, such as http://127.0.0.1:4318.")
    traces: bool = setting(FLAG, True, "Whether messages with a traceparent get spans of what becomes of them.")
    logs: bool = setting(FLAG, True, "Whether what is logged is sent there, too.")
    service: str = setting(TEXT, "weir", "The name of the service, as traces and logs have it.")


@dataclass(frozen=True, slots=True)
class Config:
    """The whole tree."""

    data: str = setting(TEXT, "weir-data", "The folder with everything that is kept; made when new.")
    listeners: Listeners = field(default_factory=Listeners)
    storage: Storage = field(default_factory=Storage)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    half: Half = field(default_factory=Half)
    groups: Groups = field(default_factory=Groups)
    auth: Auth = field(default_factory=Auth)
    tls: Tls = field(default_factory=Tls)
    cluster: Cluster = field(default_factory=Cluster)
    balance: Balance = field(default_factory=Balance)
    limits: Limits = field(default_factory=Limits)
    defaults: Defaults = field(default_factory=Defaults)
    console: ConsoleConfig = field(default_factory=ConsoleConfig)
    streams: Streams = field(default_factory=Streams)
    functions: FunctionsConfig = field(default_factory=FunctionsConfig)
    connect: Connect = field(default_factory=Connect)
    log: Log = field(default_factory=Log)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)


#: Every setting by its name.
KEYS = keys_of(Config)
