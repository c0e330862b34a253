"""Kafka's topic configs, as one table: name, type, default, and what each means in Weir.

A config that is honoured is one of the topic's policies, whoever sets it and in whatever protocol. The others are
kept, shown, and said not to be applied.

The configs of one topic: what was set, what holds, and what a change makes of the topic's record.

What configs are asked for and set of: topics, and brokers, whose configs are only shown.

What Kafka's clients are told of the broker's own configs. They are Weir's, and set where Weir is started.
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
    """Kafka's numbers for where a value comes from."""

    TOPIC = 1
    #: Here: from the topic's namespace.
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class BrokerDefaults:
    """What holds where a topic says nothing and Kafka's own default does not apply."""

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
    """A config as clients are told."""

    config: TopicConfig
    value: str
    source: Source
    default: str

    @property
    def documentation(self) -> str:
        return self.config.meaning


def shown(record: TopicRecord, holds: Policies, defaults: BrokerDefaults) -> list[Shown]:
    """Every config of a topic; `holds`: its policies, from all levels."""
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
    # Not by a Kafka client: the topic's policy was set by another way, or its namespace's holds.
    own = getattr(record.policies, config.part.field) is not None
    return Shown(config, text_of(config, now), Source.TOPIC if own else Source.DYNAMIC_DEFAULT_BROKER, default)


def _source(said: bool) -> Source:
    return Source.TOPIC if said else Source.DEFAULT


def _same_value(config: TopicConfig, said: str, now: Any) -> bool:
    """Whether what was once said is still what holds."""
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
    """The policies and properties of a topic that is created with these configs; ConfigError. `holds`: in its
    namespace, for what the configs do not say."""
    policies, properties = Policies(), {}
    for name, text in said.items():
        config = config_named(name)
        policies = _set(config, text, policies, policies.over(holds))
        properties[CONFIG_PREFIX + name] = _kept(config, text)
    check_together(policies.over(holds))
    return policies, properties


def changed(record: TopicRecord, holds: Policies, changes: Mapping[str, str | None]) -> TopicRecord:
    """The record with these configs set, or (None) back at their defaults; ConfigError."""
    policies, properties = record.policies, dict(record.properties)
    for name, text in changes.items():
        if text is None and name not in CONFIGS:
            continue  # what cannot have been set is at its default
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
    """What else is not at its default, to be put back there: an old client says all that it wants at once."""
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
    """What was understood, as it is kept and shown."""
    if config.kind is ConfigType.LIST:
        text = ",".join(word for part in text.split(",") if (word := part.strip()))
    else:
        text = text_of(config, config.parse(text))
    if len(text) > _MAX_VALUE_CHARS:
        raise ConfigError(f"the value of {config.name} has {len(text)} characters, {_MAX_VALUE_CHARS} are allowed")
    return text


def check_together(policies: Policies) -> None:
    """Values that contradict one another."""
    compaction = policies.log_compaction or LogCompaction()
    if 0 <= compaction.max_lag_ms < compaction.min_lag_ms:
        raise ConfigError(
            f"min.compaction.lag.ms ({compaction.min_lag_ms}) is more than max.compaction.lag.ms "
            f"({compaction.max_lag_ms})"
        )


def said_list(record: TopicRecord, holds: Policies, name: str) -> list[str]:
    """The words of a config that is a list, as they hold now; ConfigError for one that is none."""
    config = config_named(name)
    if config.kind is not ConfigType.LIST:
        raise ConfigError(f"{name} is not a list, so nothing can be appended to it or taken from it")
    now = _shown(CONFIGS[name], record, holds, config.default)
    return list(config.parse(now.value)) if now.value else []


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


#: What shall change, by what the topic has now: None for a config that goes back to its default.
Changes = Callable[[TopicRecord, Policies], Mapping[str, str | None]]


class ResourceType(IntEnum):
    """Kafka's numbers."""

    TOPIC = 2
    BROKER = 4


def check_here(settings: KafkaSettings, name: str) -> None:
    """A broker is named by its number; without one, all of them are meant."""
    if name not in ("", str(settings.node_id)):
        raise RefusedError(
            Code.INVALID_REQUEST, f"Unexpected broker id, expected {settings.node_id}, got {name[:20]}"
        )


async def alter(
    session: Session, kind: int, name: str, named: Iterable[str], changes: Changes, *, validate_only: bool
) -> None:
    """Change a topic's configs, all or none of them. `named`: the configs that the request names."""
    if kind == ResourceType.BROKER:
        check_cluster(session)
        check_here(session.services.settings, name)
        raise RefusedError(Code.INVALID_REQUEST, _unchangeable(list(named)))
    if kind != ResourceType.TOPIC:
        raise RefusedError(Code.INVALID_REQUEST, f"there are no configs of resources of type {kind}")
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


#: Configs of topics, by the name of the broker's config of the same meaning.
_OF_TOPICS = {config.broker_name: config.name for config in TABLE if config.broker_name}
#: Named in one message.
_MOST_LISTED = 10


def _unchangeable(names: Sequence[str]) -> str:
    """Which of a broker's configs a client cannot change, and which configs it can change instead."""
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
