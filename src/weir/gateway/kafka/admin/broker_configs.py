"""What Kafka's clients are told of the broker's own configs. They are Weir's, and set where Weir is started."""

from dataclasses import dataclass, replace

from weir.broker.api import Registry
from weir.gateway.kafka.admin.config_table import TABLE, ConfigType
from weir.gateway.kafka.admin.configs import BrokerDefaults
from weir.gateway.kafka.connection.settings import KafkaSettings
from weir.model.policies import DEFAULT_POLICIES, DEFAULT_RETENTION, AutoTopicCreation, Policies
from weir.model.topics import DEFAULT_NAMESPACE

#: Where the admin API is: with it a client that was given a bootstrap address needs nothing else.
HTTP_URL = "weir.http.url"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    name: str
    kind: ConfigType
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
    found = _configs(
        settings, registry.policies(DEFAULT_NAMESPACE), f"PLAINTEXT://{advertised_host}:{advertised_port}"
    )
    unsaid = {config.name: config.value for config in _configs(KafkaSettings(), DEFAULT_POLICIES, "")}
    return [replace(config, default=config.value == unsaid[config.name]) for config in found]


def _configs(settings: KafkaSettings, holds: Policies, address: str) -> list[BrokerConfig]:
    """`holds`: the policies of topics that say nothing."""
    defaults = defaults_of(settings)
    creation, retention = holds.auto_topic_creation or AutoTopicCreation(), holds.retention or DEFAULT_RETENTION
    found = [
        BrokerConfig("advertised.listeners", ConfigType.STRING, address),
        BrokerConfig("auto.create.topics.enable", ConfigType.BOOLEAN, str(creation.allowed).lower()),
        BrokerConfig("broker.id", ConfigType.INT, str(settings.node_id)),
        BrokerConfig("connections.max.idle.ms", ConfigType.LONG, str(int(settings.limits.idle_timeout_s * 1000))),
        BrokerConfig("default.replication.factor", ConfigType.INT, "1"),
        BrokerConfig("delete.topic.enable", ConfigType.BOOLEAN, "true"),
        BrokerConfig("listeners", ConfigType.STRING, address),
        BrokerConfig(
            "log.retention.hours", ConfigType.INT, str(-1 if retention.minutes < 0 else retention.minutes // 60)
        ),
        BrokerConfig("max.connections", ConfigType.INT, str(settings.max_connections)),
        BrokerConfig("node.id", ConfigType.INT, str(settings.node_id)),
        BrokerConfig("num.partitions", ConfigType.INT, str(max(1, creation.partitions))),
        BrokerConfig("queued.max.request.bytes", ConfigType.LONG, str(settings.max_received_bytes)),
        BrokerConfig("socket.request.max.bytes", ConfigType.INT, str(settings.limits.max_request_bytes)),
        BrokerConfig(HTTP_URL, ConfigType.STRING, settings.http_url),
        *(
            BrokerConfig(config.broker_name, config.kind, defaults.of(config))
            for config in TABLE
            if config.broker_name
        ),
    ]
    return sorted(found, key=lambda config: config.name)
