"""What Kafka's clients are told of the broker's own configs. They are Weir's, and set where Weir is started."""

from dataclasses import dataclass, replace

from weir.broker.registry.registry import Registry
from weir.gateway.kafka.admin.config_table import TABLE, Kind
from weir.gateway.kafka.admin.configs import BrokerDefaults
from weir.gateway.kafka.catalog import KAFKA_RETENTION
from weir.gateway.kafka.connection.settings import KafkaSettings
from weir.model.policies import DEFAULT_POLICIES, AutoTopicCreation
from weir.model.topics import DEFAULT_NAMESPACE

#: Where the admin API is: with it a client that was given a bootstrap address needs nothing else.
HTTP_URL = "weir.http.url"


_CREATION = DEFAULT_POLICIES.auto_topic_creation or AutoTopicCreation()


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    name: str
    kind: Kind
    value: str
    #: Whether it is what holds where nobody says anything.
    default: bool = False


def defaults_of(settings: KafkaSettings) -> BrokerDefaults:
    return BrokerDefaults(
        max_message_bytes=settings.limits.max_batch_bytes,
        ledger_bytes=settings.ledger_bytes,
        ledger_age_ms=int(settings.ledger_age_s * 1000),
    )


def broker_configs(
    settings: KafkaSettings, registry: Registry, *, advertised_host: str, advertised_port: int
) -> list[BrokerConfig]:
    """In the order of their names."""
    creation = registry.policies(DEFAULT_NAMESPACE).auto_topic_creation or AutoTopicCreation()
    found = _configs(settings, creation, f"PLAINTEXT://{advertised_host}:{advertised_port}")
    unsaid = {config.name: config.value for config in _configs(KafkaSettings(), _CREATION, "")}
    return [replace(config, default=config.value == unsaid[config.name]) for config in found]


def _configs(settings: KafkaSettings, creation: AutoTopicCreation, address: str) -> list[BrokerConfig]:
    defaults = defaults_of(settings)
    found = [
        BrokerConfig("advertised.listeners", Kind.STRING, address),
        BrokerConfig("auto.create.topics.enable", Kind.BOOLEAN, str(creation.allowed).lower()),
        BrokerConfig("broker.id", Kind.INT, str(settings.node_id)),
        BrokerConfig("connections.max.idle.ms", Kind.LONG, str(int(settings.limits.idle_timeout_s * 1000))),
        BrokerConfig("default.replication.factor", Kind.INT, "1"),
        BrokerConfig("delete.topic.enable", Kind.BOOLEAN, "true"),
        BrokerConfig("listeners", Kind.STRING, address),
        BrokerConfig("log.retention.hours", Kind.INT, str(KAFKA_RETENTION.minutes // 60)),
        BrokerConfig("max.connections", Kind.INT, str(settings.max_connections)),
        BrokerConfig("node.id", Kind.INT, str(settings.node_id)),
        BrokerConfig("num.partitions", Kind.INT, str(max(1, creation.partitions))),
        BrokerConfig("queued.max.request.bytes", Kind.LONG, str(settings.max_received_bytes)),
        BrokerConfig("socket.request.max.bytes", Kind.INT, str(settings.limits.max_request_bytes)),
        BrokerConfig(HTTP_URL, Kind.STRING, settings.http_url),
        *(
            BrokerConfig(config.broker_name, config.kind, defaults.of(config))
            for config in TABLE
            if config.broker_name
        ),
    ]
    return sorted(found, key=lambda config: config.name)
