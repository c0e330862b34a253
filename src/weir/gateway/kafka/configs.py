"""Reads and changes the configs of topics, and shows those of brokers.

A topic's effective config follows from its policies and from the properties that Kafka clients set. Broker configs
are read-only for clients: operators set them in Weir's own configuration.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from weir.broker.api.metadata import Registry
from weir.gateway.kafka.admin_requests import check_cluster, existing
from weir.gateway.kafka.config_table import CONFIGS, TABLE, ConfigType, TopicConfig, config_named
from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.metadata import CONFIG_PREFIX
from weir.gateway.kafka.session import Session
from weir.gateway.kafka.settings import KafkaSettings
from weir.model.errors import ConfigError
from weir.model.policies import (
    DEFAULT_POLICIES,
    DEFAULT_RETENTION,
    AutoTopicCreation,
    LogCompaction,
    Policies,
)
from weir.model.registry import TopicRecord
from weir.model.topics import DEFAULT_NAMESPACE

_MAX_VALUE_CHARS = 4096


class Source(IntEnum):
    """Kafka's numbers for the source of a value."""

    TOPIC = 1
    #: Here: from the topic's namespace.
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class BrokerDefaults:
    """Defaults of topic configs that follow the broker's settings instead of Kafka's default."""

    max_message_bytes: int = 5 * 1024 * 1024
    ledger_bytes: int = 256 * 1024 * 1024
    ledger_age_ms: int = 4 * 3_600_000

    def of(self, config: TopicConfig) -> str:
        match config.name:
            case "max.message.bytes":
                return str(self.max_message_bytes)
            case "segment.bytes":
                return str(self.ledger_bytes)
            case "segment.ms":
                return str(self.ledger_age_ms)
            case _:
                return config.default


@dataclass(frozen=True, slots=True)
class Shown:
    """A config as DescribeConfigs returns it."""

    config: TopicConfig
    value: str
    source: Source
    default: str

    @property
    def documentation(self) -> str:
        return self.config.meaning


def shown(record: TopicRecord, holds: Policies, defaults: BrokerDefaults) -> list[Shown]:
    """Every config of a topic; `holds`: its effective policies, merged from all levels."""
    return [_shown(config, record, holds, defaults.of(config)) for config in TABLE]


def _shown(config: TopicConfig, record: TopicRecord, holds: Policies, default: str) -> Shown:
    said = record.properties.get(CONFIG_PREFIX + config.name)
    if config.part is None:
        return Shown(config, default if said is None else said, _source(said is not None), default)
    now = config.part.of(holds)
    if said is not None and _same_value(config, said, now):
        return Shown(config, said, Source.TOPIC, default)
    if now is None or text_of(config, now) == default:
        return Shown(config, default, Source.DEFAULT, default)
    # No Kafka client set it: the policy was set through another interface, or the namespace's policy applies.
    own = getattr(record.policies, config.part.field) is not None
    return Shown(config, text_of(config, now), Source.TOPIC if own else Source.DYNAMIC_DEFAULT_BROKER, default)


def _source(said: bool) -> Source:
    return Source.TOPIC if said else Source.DEFAULT


def _same_value(config: TopicConfig, said: str, now: Any) -> bool:
    """Whether the value that a Kafka client set is still in effect."""
    try:
        parsed = config.parse(said)
    except ConfigError:
        return False
    return bool(sorted(parsed) == sorted(now) if config.kind is ConfigType.LIST else _near(parsed, now))


def _near(said: Any, now: Any) -> bool:
    return bool(abs(said - now) <= 0.005) if isinstance(said, float) else bool(said == now)


def text_of(config: TopicConfig, value: Any) -> str:
    """A value as Kafka writes it."""
    if config.kind is ConfigType.LIST:
        return ",".join(value)
    return str(value).lower() if config.kind is ConfigType.BOOLEAN else str(value)


# --- changing -----------------------------------------------------------------------------------------------


def new_topic(said: Mapping[str, str], holds: Policies) -> tuple[Policies, dict[str, str]]:
    """The policies and properties of a topic created with these configs; ConfigError. `holds`: the namespace's
    policies, which apply where no config is set."""
    policies, properties = Policies(), {}
    for name, text in said.items():
        config = config_named(name)
        policies = _set(config, text, policies, policies.over(holds))
        properties[CONFIG_PREFIX + name] = _kept(config, text)
    check_together(policies.over(holds))
    return policies, properties


def changed(record: TopicRecord, holds: Policies, changes: Mapping[str, str | None]) -> TopicRecord:
    """The record with these configs set, or (None) reset to their defaults; ConfigError."""
    policies, properties = record.policies, dict(record.properties)
    for name, text in changes.items():
        if text is None and name not in CONFIGS:
            continue  # an unknown config cannot have been set
        config = config_named(name)
        if text is None:
            properties.pop(CONFIG_PREFIX + name, None)
            policies = _reset(config, policies, policies.over(holds))
        else:
            properties[CONFIG_PREFIX + name] = _kept(config, text)
            policies = _set(config, text, policies, policies.over(holds))
    check_together(policies.over(holds))
    return replace(record, policies=policies, properties=properties)


def everything_else(record: TopicRecord, holds: Policies, kept: Mapping[str, str]) -> dict[str, str | None]:
    """Resets for all set configs that are not in `kept`: AlterConfigs replaces the whole set of configs."""
    found = shown(record, holds, BrokerDefaults())
    return {s.config.name: None for s in found if s.source is Source.TOPIC and s.config.name not in kept}


def _set(config: TopicConfig, text: str, own: Policies, holds: Policies) -> Policies:
    value = config.parse(text)
    return own if config.part is None else config.part.into(own, holds, value)


def _reset(config: TopicConfig, own: Policies, holds: Policies) -> Policies:
    if config.part is None:
        return own
    value = config.parse(config.default) if config.default else None
    if value == config.part.of(holds):
        return own
    return config.part.into(own, holds, value)


def _kept(config: TopicConfig, text: str) -> str:
    """The normalized text of a value, as it is stored and shown."""
    if config.kind is ConfigType.LIST:
        text = ",".join(word for part in text.split(",") if (word := part.strip()))
    else:
        text = text_of(config, config.parse(text))
    if len(text) > _MAX_VALUE_CHARS:
        raise ConfigError(f"the value of {config.name} has {len(text)} characters, {_MAX_VALUE_CHARS} are allowed")
    return text


def check_together(policies: Policies) -> None:
    """Raise ConfigError for values that contradict each other."""
    compaction = policies.log_compaction or LogCompaction()
    if 0 <= compaction.max_lag_ms < compaction.min_lag_ms:
        raise ConfigError(
            f"min.compaction.lag.ms ({compaction.min_lag_ms}) is more than max.compaction.lag.ms "
            f"({compaction.max_lag_ms})"
        )


def said_list(record: TopicRecord, holds: Policies, name: str) -> list[str]:
    """The current words of a list config; ConfigError for a config that is not a list."""
    config = config_named(name)
    if config.kind is not ConfigType.LIST:
        raise ConfigError(f"{name} is not a list: APPEND and SUBTRACT need a list")
    now = _shown(CONFIGS[name], record, holds, config.default)
    return list(config.parse(now.value)) if now.value else []


#: The URL of the admin API: with it, a client needs no other address than the bootstrap servers.
HTTP_URL = "weir.http.url"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    name: str
    kind: ConfigType
    value: str
    #: Whether the value is the default.
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
    """The broker's configs, sorted by name."""
    found = _configs(
        settings, registry.policies(DEFAULT_NAMESPACE), f"PLAINTEXT://{advertised_host}:{advertised_port}"
    )
    unsaid = {config.name: config.value for config in _configs(KafkaSettings(), DEFAULT_POLICIES, "")}
    return [replace(config, default=config.value == unsaid[config.name]) for config in found]


def _configs(settings: KafkaSettings, holds: Policies, address: str) -> list[BrokerConfig]:
    """`holds`: the policies of topics without own policies."""
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


#: Computes the changes from the topic's current state; None resets a config to its default.
Changes = Callable[[TopicRecord, Policies], Mapping[str, str | None]]


class ResourceType(IntEnum):
    """Kafka's numbers."""

    TOPIC = 2
    BROKER = 4


def check_here(settings: KafkaSettings, name: str) -> None:
    """Raise RefusedError unless `name` is this broker's number, or empty, which means all brokers."""
    if name not in ("", str(settings.node_id)):
        raise RefusedError(
            Code.INVALID_REQUEST, f"Unexpected broker id, expected {settings.node_id}, got {name[:20]}"
        )


async def alter(
    session: Session, kind: int, name: str, named: Iterable[str], changes: Changes, *, validate_only: bool
) -> None:
    """Change a topic's configs atomically. `named`: the configs that the request names."""
    if kind == ResourceType.BROKER:
        check_cluster(session)
        check_here(session.services.settings, name)
        raise RefusedError(Code.INVALID_REQUEST, _unchangeable(list(named)))
    if kind != ResourceType.TOPIC:
        raise RefusedError(Code.INVALID_REQUEST, f"resources of type {kind} have no configs")
    if not name:
        raise RefusedError(Code.INVALID_REQUEST, "Default topic resources are not allowed.")
    registry = session.services.registry
    record = await existing(session, name)
    below = registry.policies(record.name.namespace)

    def change(now: TopicRecord) -> TopicRecord:
        holds = now.policies.over(below)
        return changed(now, holds, changes(now, holds))

    if validate_only:
        change(record)
    else:
        await registry.topics.change(record.name, change)


#: Topic configs, by the name of the equivalent broker config.
_OF_TOPICS = {config.broker_name: config.name for config in TABLE if config.broker_name}
#: Configs listed in one error message.
_MOST_LISTED = 10


def _unchangeable(names: Sequence[str]) -> str:
    """The error message for broker configs, with the topic configs that the client can change instead."""
    refused = ", ".join(name[:100] for name in names[:_MOST_LISTED])
    if len(names) > _MOST_LISTED:
        refused += f" and {len(names) - _MOST_LISTED} more"
    of_topics = {name: found for name in names if (found := _OF_TOPICS.get(name))}
    if of_topics:
        instead = "; ".join(
            f"instead of {name}, set {found} of a topic" for name, found in sorted(of_topics.items())
        )
    else:
        instead = f"these can be changed, for each topic: {', '.join(sorted(_OF_TOPICS.values()))}"
    return (
        f"Cannot update these configs dynamically: {refused}. Clients cannot change any config of a broker: "
        "they are set where Weir is started (docs/reference/configuration.md). "
        f"{instead[:1].upper()}{instead[1:]}."
    )
