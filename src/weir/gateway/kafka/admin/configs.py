"""The configs of one topic: what was set, what holds, and what a change makes of the topic's record."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from weir.gateway.kafka.admin.config_table import CONFIGS, TABLE, ConfigType, TopicConfig, config_named
from weir.gateway.kafka.catalog import CONFIG_PREFIX
from weir.model.errors import ConfigError
from weir.model.policies import LogCompaction, Policies
from weir.model.registry import TopicRecord

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
