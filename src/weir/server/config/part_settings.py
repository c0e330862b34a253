"""From the configuration to the small settings value of each part."""

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from weir.bookie.settings import BookieSettings, CacheSettings, FlushSettings, JournalSettings, SpaceSettings
from weir.broker.balance.balance_round import BalanceLimits
from weir.broker.balance.balancer import BalanceSettings
from weir.broker.groups.group import GroupSettings
from weir.broker.metadata.topic_records import TopicLimits
from weir.broker.peers.peer_calls import PeerServerSettings
from weir.broker.security.authentication import SecuritySettings
from weir.broker.security.cluster_credentials import ClusterCredentialSettings
from weir.broker.security.tokens import TokenRules
from weir.broker.settings import BrokerSettings, HalfSettings
from weir.gateway.amqp.settings import AmqpSettings
from weir.gateway.amqp.settings import SessionLimits as AmqpLimits
from weir.gateway.kafka.settings import KafkaSettings
from weir.gateway.kafka.settings import SessionLimits as KafkaLimits
from weir.gateway.pulsar.settings import PulsarSettings, SessionLimits
from weir.gateway.rocketmq.settings import RocketmqSettings
from weir.gateway.rocketmq.settings import SessionLimits as RocketmqLimits
from weir.model.errors import ConfigError
from weir.model.ids import BookieId
from weir.model.ledger import Quorum
from weir.model.policies import AutoTopicCreation, BacklogAction, BacklogQuota, Policies, Retention
from weir.rest.http import HttpSettings
from weir.runtime.real_tls import FileContext, TlsFiles
from weir.server.addresses import Address, advertised
from weir.server.config.tree import Config
from weir.server.local_storage import StorageSettings
from weir.server.remote_storage import RemoteStorageSettings
from weir.stream.settings import StreamSettings

_BOOKIE = BookieId("local")
_STANDALONE = "standalone"
_MAX_NAME_CHARS = 200
#: Metadata of a message for a consumer by Pulsar's protocol: the properties of one from AMQP have 128 KiB at most.
PULSAR_METADATA_BYTES = 256 * 1024
#: What clients of gRPC hear in the handshake.
_HTTP2 = ("h2",)
_MAX_ENSEMBLE = 32


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Where the key for tokens is, and what tokens must say; without a key none are taken."""

    secret: str
    public_key: str
    rules: TokenRules


#: Where 0 in the configuration means that there is no limit.
_ANY_NUMBER = 2**31


def storage_settings(config: Config, *, accept_loss: bool = False) -> StorageSettings:
    folder = str(Path(config.data).absolute())
    storage = config.storage
    if storage.low_water_bytes > storage.high_water_bytes:
        raise ConfigError(
            "storage.low_water_bytes is above storage.high_water_bytes", hint="set both, the low one lower"
        )
    bookie = BookieSettings(
        _BOOKIE,
        f"{folder}/bookie",
        journal=JournalSettings(sync_interval_s=storage.sync, file_bytes=storage.journal_file_bytes),
        cache=CacheSettings(write_bytes=storage.write_cache_bytes, read_bytes=storage.read_cache_bytes),
        flush=FlushSettings(interval_s=storage.flush_interval),
        space=SpaceSettings(storage.low_water_bytes, storage.high_water_bytes),
    )
    return StorageSettings(folder, bookie, accept_loss)


def broker_name(config: Config) -> str:
    """A Weir of one process has a name that it need not be told; a broker of a cluster has one of its own."""
    name = config.cluster.name or (socket.gethostname() if config.cluster.meta else _STANDALONE)
    if "/" in name or not name.isprintable() or len(name) > _MAX_NAME_CHARS:
        raise ConfigError(f"{name!r} cannot be a broker's name", hint="set cluster.name to a short one")
    return name


def quorum(config: Config) -> Quorum:
    """Over how many bookies ledgers are spread; a broker over remote ones keeps two copies unless it is told."""
    text = config.storage.quorum or ("2/2/2" if config.cluster.meta else "1/1/1")
    numbers = text.split("/")
    if len(numbers) != 3 or not all(part.isascii() and part.isdigit() for part in numbers):
        raise ConfigError(f"storage.quorum is no three numbers: {text!r}", hint="write it as in 3/3/2")
    ensemble, write, ack = map(int, numbers)
    if not 1 <= ack <= write <= ensemble <= _MAX_ENSEMBLE:
        raise ConfigError(
            f"storage.quorum {text} cannot be",
            hint="acknowledged by at most the copies, copies at most the bookies",
        )
    return Quorum(ensemble, write, ack)


def remote_storage(config: Config) -> RemoteStorageSettings:
    if not config.cluster.meta:
        raise ConfigError(
            "a broker of a cluster needs to know where the metadata is",
            hint="set cluster.meta = etcd://host:port, in --config or with --set",
        )
    return RemoteStorageSettings(
        config.cluster.meta, cluster_credentials(config), quorum(config).ensemble, broker_name(config)
    )


def stream_settings(config: Config) -> StreamSettings:
    storage = config.storage
    return StreamSettings(
        quorum=quorum(config),
        roll_bytes=storage.ledger_bytes,
        roll_entries=storage.ledger_entries,
        roll_s=storage.ledger_age,
        state_pause_s=storage.cursor_interval,
        lake_cache_bytes=storage.lake_cache_bytes,
    )


def broker_settings(config: Config) -> BrokerSettings:
    broker = config.broker
    return BrokerSettings(
        in_flight_bytes=broker.in_flight_bytes,
        delivery_bytes=broker.delivery_bytes,
        queue_memory_bytes=broker.queue_memory,
        look_ahead=broker.look_ahead,
        dedup_snapshot_every=broker.dedup_snapshot_every,
        dedup_forget_s=broker.dedup_forget,
        maintenance_s=broker.maintenance_interval,
        unload_s=broker.unload_after,
        subscription_consumers=config.limits.subscription_consumers,
        half=HalfSettings(
            recovery_s=config.half.recovery,
            interval_s=config.half.check_interval,
            checks=config.half.max_checks,
            most=config.half.max_waiting,
            remember_s=config.half.remember,
        ),
    )


def group_settings(config: Config) -> GroupSettings:
    groups = config.groups
    return GroupSettings(
        initial_delay_s=groups.initial_delay,
        min_session_s=groups.min_session,
        max_session_s=groups.max_session,
        max_members=groups.max_members,
        max_groups_per_role=groups.max_per_role,
        retention_s=groups.retention,
        sweep_s=min(GroupSettings().sweep_s, max(1.0, groups.retention / 2)),
    )


def topic_limits(config: Config) -> TopicLimits:
    limits = config.limits
    return TopicLimits(
        max_partitions=limits.partitions,
        max_topics_per_namespace=limits.topics,
        cached=max(1, limits.topic_records),
    )


def balance_settings(config: Config) -> BalanceSettings:
    balance = config.balance
    if balance.stop_percent >= balance.start_percent:
        raise ConfigError(
            "balance.stop_percent is not below balance.start_percent", hint="set both, the first one lower"
        )
    return BalanceSettings(
        interval_s=balance.interval,
        limits=BalanceLimits(
            start=balance.start_percent / 100,
            stop=balance.stop_percent / 100,
            bundle_pause_s=balance.bundle_pause,
            moves_per_round=balance.moves_per_round,
            split_topics=balance.split_topics,
            bundles_per_namespace=balance.bundles_per_namespace,
            broker_bytes_per_s=balance.broker_bytes,
        ),
        enabled=balance.enabled,
        memory_bytes=balance.memory_bytes,
    )


def default_policies(config: Config) -> Policies:
    defaults = config.defaults
    return Policies(
        retention=Retention(defaults.retention_minutes, defaults.retention_megabytes),
        message_ttl_s=round(defaults.message_ttl),
        backlog_quota=BacklogQuota(
            defaults.backlog_bytes, defaults.backlog_seconds, BacklogAction(defaults.backlog_action)
        ),
        deduplication=defaults.deduplication,
        max_unacked_per_consumer=defaults.max_unacked_per_consumer,
        max_unacked_per_subscription=defaults.max_unacked_per_subscription,
        max_producers=defaults.max_producers,
        max_consumers=defaults.max_consumers,
        max_subscriptions=defaults.max_subscriptions,
        auto_topic_creation=AutoTopicCreation(defaults.auto_create_topics, defaults.auto_create_partitions),
        auto_subscription_creation=defaults.auto_create_subscriptions,
    )


def security_settings(config: Config) -> SecuritySettings:
    auth = config.auth
    return SecuritySettings(
        authentication=auth.authenticate,
        authorisation=auth.authorise,
        anonymous_role=auth.anonymous_role,
        allow_anonymous=auth.allow_anonymous,
        superusers=auth.superusers,
    )


def token_settings(config: Config) -> TokenSettings:
    auth = config.auth
    if auth.token_secret and auth.token_public_key:
        raise ConfigError(
            "auth.token_secret and auth.token_public_key exclude each other", hint="tokens have one kind of key"
        )
    rules = TokenRules(auth.role_claim, auth.audience or None, leeway_s=auth.clock_leeway)
    return TokenSettings(auth.token_secret, auth.token_public_key, rules)


def pulsar_settings(config: Config, bound: Address, *, secure: bool) -> PulsarSettings:
    limits = config.limits
    scheme = "pulsar+ssl" if secure else "pulsar"
    return PulsarSettings(
        host=bound.host,
        port=bound.port,
        advertise=f"{scheme}://{reachable(config, bound)}",
        max_connections=limits.connections,
        limits=SessionLimits(
            # What other protocols take as one message is a frame with more metadata for Pulsar's consumers.
            max_message_bytes=limits.message_bytes + PULSAR_METADATA_BYTES,
            max_publish_bytes=limits.connection_bytes,
            max_links=limits.connection_consumers or _ANY_NUMBER,
            idle_timeout_s=2 * limits.keep_alive,
        ),
        close_grace_s=limits.drain_timeout,
    )


def kafka_settings(config: Config, bound: Address, listener: str = "kafka") -> KafkaSettings:
    limits, told = config.limits, reachable(config, bound)
    return KafkaSettings(
        listener=listener,
        host=bound.host,
        port=bound.port,
        advertised_host=told.host,
        advertised_port=told.port,
        max_connections=limits.connections,
        limits=KafkaLimits(
            max_request_bytes=limits.request_bytes,
            max_batch_bytes=limits.message_bytes,
            max_pending_bytes=limits.connection_bytes,
            idle_timeout_s=limits.idle,
        ),
        max_received_bytes=limits.received_bytes,
        ledger_bytes=config.storage.ledger_bytes,
        ledger_age_s=config.storage.ledger_age,
        close_grace_s=limits.drain_timeout,
    )


def amqp_settings(config: Config, bound: Address) -> AmqpSettings:
    limits = config.limits
    return AmqpSettings(
        host=bound.host,
        port=bound.port,
        max_connections=limits.connections,
        max_received_bytes=limits.received_bytes,
        limits=AmqpLimits(
            max_message_bytes=limits.message_bytes,
            max_publish_bytes=limits.connection_bytes,
            max_consumers=limits.connection_consumers or _ANY_NUMBER,
        ),
        cluster_name=broker_name(config),
        close_grace_s=limits.drain_timeout,
    )


def rocketmq_settings(config: Config, bound: Address, name: str) -> RocketmqSettings:
    limits = config.limits
    told = reachable(config, bound)
    return RocketmqSettings(
        host=bound.host,
        port=bound.port,
        name=name,
        advertised_host=told.host,
        advertised_port=told.port,
        max_connections=limits.connections,
        max_received_bytes=limits.received_bytes,
        limits=RocketmqLimits(
            max_body_bytes=min(limits.message_bytes, RocketmqLimits().max_body_bytes),
            max_send_bytes=limits.connection_bytes,
            idle_timeout_s=limits.idle,
        ),
        cluster_name=broker_name(config),
        close_grace_s=limits.drain_timeout,
    )


def http_settings(config: Config, bound: Address) -> HttpSettings:
    limits = config.limits
    return HttpSettings(
        host=bound.host,
        port=bound.port,
        max_connections=limits.http_connections,
        max_body_bytes=limits.http_body_bytes,
        drain_s=limits.drain_timeout,
    )


def peer_settings(config: Config, bound: Address) -> PeerServerSettings:
    return PeerServerSettings(bound.host, bound.port, close_grace_s=config.limits.drain_timeout)


def cluster_credentials(config: Config) -> ClusterCredentialSettings:
    cluster = config.cluster
    return ClusterCredentialSettings(cluster.secret, cluster.certificate, cluster.key, cluster.authority)


def http2_tls_context(config: Config) -> ssl.SSLContext | None:
    """For `listeners.rocketmq_tls`: ALPN names HTTP/2, as clients of gRPC require; None without that listener."""
    return tls_context(config, speaks=_HTTP2) if config.listeners.rocketmq_tls else None


def shared_http2_tls_context(config: Config) -> ssl.SSLContext | None:
    """For `listeners.rocketmq`, which serves TLS and clear text on one port; None if no certificate is configured.
    It asks for client certificates and never demands them: its clients may use clear text as well."""
    if not config.tls.certificate and not config.tls.key:
        return None
    return _configured_context(config, ssl.CERT_OPTIONAL, _HTTP2)


def reachable(config: Config, bound: Address) -> Address:
    """Where clients are told to come."""
    host = config.listeners.advertised_host
    return advertised(bound, Address(host, 0) if host else None)


def tls_context(config: Config, *, speaks: Sequence[str] = ()) -> ssl.SSLContext | None:
    """For the listeners that want TLS; None if none does. `speaks`: what clients hear in the handshake."""
    listeners, tls = config.listeners, config.tls
    secure = (listeners.pulsar_tls, listeners.kafka_tls, listeners.amqps, listeners.rocketmq_tls, listeners.https)
    if not any(secure):
        return None
    asked = ssl.CERT_OPTIONAL if tls.client_auth == "optional" else ssl.CERT_REQUIRED
    return _configured_context(config, asked, speaks)


def _configured_context(config: Config, asked: ssl.VerifyMode, speaks: Sequence[str]) -> ssl.SSLContext:
    tls = config.tls
    if not tls.certificate or not tls.key:
        raise ConfigError(
            "a TLS listener needs a certificate",
            hint="set tls.certificate and tls.key; weir tls init makes them, and prints the lines for weir.toml",
        )
    files = TlsFiles(tls.certificate, tls.key, tls.client_ca)
    return FileContext(ssl.PROTOCOL_TLS_SERVER, files, partial(_server_context, asked, speaks))


def _server_context(asked: ssl.VerifyMode, speaks: Sequence[str], files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if speaks:
        context.set_alpn_protocols(list(speaks))
    context.load_cert_chain(files.certificate, files.key)
    if files.authority:
        context.load_verify_locations(files.authority)
        context.verify_mode = asked
    return context
