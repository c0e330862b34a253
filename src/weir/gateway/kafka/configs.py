"""Kafka's topic configs, as one table: name, type, default, and what each means in Weir.

A config that is honoured is one of the topic's policies, whoever sets it and in whatever protocol. The others are
kept, shown, and said not to be applied.

The configs of one topic: what was set, what holds, and what a change makes of the topic's record.

What configs are asked for and set of: topics, and brokers, whose configs are only shown.

What Kafka's clients are told of the broker's own configs. They are Weir's, and set where Weir is started.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import IntEnum
from typing import Any

from weir.broker.api.metadata import Registry
from weir.gateway.kafka.admin_requests import check_cluster, existing
from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.metadata import CONFIG_PREFIX
from weir.gateway.kafka.session import Session
from weir.gateway.kafka.settings import KafkaSettings
from weir.model.errors import ConfigError
from weir.model.policies import (
    DEFAULT_POLICIES,
    DEFAULT_RETENTION,
    AutoTopicCreation,
    Cleanup,
    LogCompaction,
    Policies,
    Retention,
    Roll,
)
from weir.model.registry import TopicRecord
from weir.model.topics import DEFAULT_NAMESPACE

_LONG_MAX = (1 << 63) - 1
_INT_MAX = (1 << 31) - 1
_DAY_MS = 86_400_000
_MIB = 1024 * 1024


class ConfigType(IntEnum):
    """Kafka's numbers for the types of configs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True)
class Part:
    """Where a config lives in a topic's policies."""

    #: The field of `Policies`.
    field: str
    #: What holds, as this config's value; None: what is the default then only the broker knows.
    of: Callable[[Policies], Any]
    #: The topic's own policies with this value; `holds` is what holds now, on all levels.
    into: Callable[[Policies, Policies, Any], Policies]


@dataclass(frozen=True, slots=True)
class TopicConfig:
    name: str
    kind: ConfigType
    default: str
    #: For people: what Weir does with it.
    meaning: str
    part: Part | None = None
    least: float = -_LONG_MAX - 1
    most: float = _LONG_MAX
    choices: tuple[str, ...] = ()
    #: Numbers in between that mean nothing.
    never: tuple[int, ...] = ()
    #: What each word of a list looks like, as a pattern.
    words: str = ""
    #: What the broker's own config of the same meaning is called.
    broker_name: str = ""
    #: Whether a list of `choices` may choose nothing.
    may_be_empty: bool = False
    #: Kept as a property that the gateway acts upon, rather than as a policy.
    by_gateway: bool = False

    @property
    def honoured(self) -> bool:
        return self.part is not None or self.by_gateway

    def parse(self, text: str) -> Any:
        """The value in a text; ConfigError if it cannot be one."""
        text = text.strip()
        try:
            match self.kind:
                case ConfigType.BOOLEAN:
                    found: Any = {"true": True, "false": False}[text.lower()]
                case ConfigType.INT | ConfigType.LONG:
                    found = int(text)
                case ConfigType.DOUBLE:
                    found = float(text)
                case ConfigType.LIST:
                    words = text.split(",") if text else []
                    found = tuple(dict.fromkeys(word.strip() for word in words))
                case _:
                    found = text
        except (ValueError, KeyError):
            raise self._wrong(text, f"a {self.kind.name.lower()}") from None
        self._check(text, found)
        return found

    def _check(self, text: str, found: Any) -> None:
        if self.kind in (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE):
            most = min(self.most, _INT_MAX) if self.kind is ConfigType.INT else self.most
            if not self.least <= found <= most:  # NaN too
                raise self._wrong(text, f"at least {self.least:g} and at most {most:g}")
            if found in self.never:
                raise self._wrong(text, f"something else than {found}")
        words = (
            found
            if self.kind is ConfigType.LIST
            else (text.lower() if self.kind is ConfigType.BOOLEAN else found,)
        )
        missing = not words and not self.may_be_empty
        if self.choices and (missing or any(word not in self.choices for word in words)):
            raise self._wrong(text, f"one of {', '.join(self.choices)}")
        if self.words and text != "*" and any(not re.fullmatch(self.words, word) for word in words):
            raise self._wrong(text, "* or a list of partition:broker")

    def _wrong(self, text: str, wanted: str) -> ConfigError:
        return ConfigError(f"Invalid value {text[:80]} for configuration {self.name}: it is to be {wanted}")


# --- what is honoured ---------------------------------------------------------------------------------------


def _retention(holds: Policies) -> Retention:
    return holds.retention or Retention()


def _compaction(holds: Policies) -> LogCompaction:
    return holds.log_compaction or LogCompaction()


def _roll(holds: Policies) -> Roll:
    return holds.roll or Roll()


def _of_compaction(field: str, value_of: Callable[[Any], Any], field_of: Callable[[Any], Any]) -> Part:
    """A field of the compaction policy; `value_of` and `field_of` translate."""

    def of(holds: Policies) -> Any:
        return value_of(getattr(_compaction(holds), field))

    def into(own: Policies, holds: Policies, value: Any) -> Policies:
        return replace(own, log_compaction=replace(_compaction(holds), **{field: field_of(value)}))

    return Part("log_compaction", of, into)


def _same(value: Any) -> Any:
    return value


def _cleanup_of(words: tuple[str, ...]) -> Cleanup:
    if len(words) == 2:
        return Cleanup.BOTH
    return Cleanup(words[0]) if words else Cleanup.NONE


RETENTION_MS = Part(
    "retention",
    lambda holds: _retention(holds).time_ms,
    lambda own, holds, ms: replace(own, retention=Retention.exactly(ms, _retention(holds).size_bytes)),
)
RETENTION_BYTES = Part(
    "retention",
    lambda holds: _retention(holds).size_bytes,
    lambda own, holds, size: replace(own, retention=Retention.exactly(_retention(holds).time_ms, size)),
)
CLEANUP = _of_compaction(
    "cleanup", lambda cleanup: tuple(cleanup.value.split(",") if cleanup.value else ()), _cleanup_of
)
#: Kafka's "no bound" is the largest number there is.
MAX_LAG = _of_compaction(
    "max_lag_ms", lambda ms: _LONG_MAX if ms < 0 else ms, lambda ms: -1 if ms == _LONG_MAX else ms
)
DIRTY = _of_compaction("dirty_percent", lambda percent: percent / 100, lambda ratio: round(ratio * 100))
SEGMENT_BYTES = Part(
    "roll",
    lambda holds: _roll(holds).bytes or None,
    lambda own, holds, size: replace(own, roll=replace(_roll(holds), bytes=size or 0)),
)
SEGMENT_MS = Part(
    "roll",
    lambda holds: _roll(holds).ms or None,
    lambda own, holds, ms: replace(own, roll=replace(_roll(holds), ms=ms or 0)),
)
MAX_BYTES = Part(
    "max_message_bytes",
    lambda holds: holds.max_message_bytes or None,
    # None: no more than the broker's. A size of 0 lets nothing in, as every batch is larger.
    lambda own, holds, size: replace(own, max_message_bytes=0 if size is None else max(1, size)),
)

_NOT = "Kept and shown, not applied: "
_DISK = _NOT + "how Weir writes to its disks is storage.* in its own configuration."
_REPLICAS = _NOT + "messages are replicated as the broker's ledgers are, the same for all topics."
_REPLICA = r"[0-9]+:[0-9]+"
_TIERED = _NOT + "Weir has no tiered storage of Kafka's kind."
_LEVEL = _NOT + "batches stay as their producers compressed them."

TABLE = (
    TopicConfig(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        "delete: old messages go as retention.* says. compact: the latest of each key stays. Both may be said. "
        "Empty: all messages stay.",
        CLEANUP,
        choices=("delete", "compact"),
        may_be_empty=True,
        broker_name="log.cleanup.policy",
    ),
    TopicConfig("compression.gzip.level", ConfigType.INT, "-1", _LEVEL, least=-1, most=9, never=(0,)),
    TopicConfig("compression.lz4.level", ConfigType.INT, "9", _LEVEL, least=1, most=17),
    TopicConfig(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "Batches stay as their producers compressed them; values but producer are kept and shown, not applied.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        broker_name="compression.type",
    ),
    TopicConfig("compression.zstd.level", ConfigType.INT, "3", _LEVEL, least=-131_072, most=22),
    TopicConfig(
        "delete.retention.ms",
        ConfigType.LONG,
        str(_DAY_MS),
        "How long a record without a value is to be seen after the compaction that found it.",
        _of_compaction("tombstone_ms", _same, _same),
        least=0,
        broker_name="log.cleaner.delete.retention.ms",
    ),
    TopicConfig("file.delete.delay.ms", ConfigType.LONG, "60000", _DISK, least=0),
    TopicConfig("flush.messages", ConfigType.LONG, str(_LONG_MAX), _DISK, least=1),
    TopicConfig("flush.ms", ConfigType.LONG, str(_LONG_MAX), _DISK, least=0),
    TopicConfig("follower.replication.throttled.replicas", ConfigType.LIST, "", _REPLICAS, words=_REPLICA),
    TopicConfig("index.interval.bytes", ConfigType.INT, "4096", _DISK, least=0),
    TopicConfig("leader.replication.throttled.replicas", ConfigType.LIST, "", _REPLICAS, words=_REPLICA),
    TopicConfig("local.retention.bytes", ConfigType.LONG, "-2", _TIERED, least=-2),
    TopicConfig("local.retention.ms", ConfigType.LONG, "-2", _TIERED, least=-2),
    TopicConfig(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        str(_LONG_MAX),
        "What is older shall be compacted, however little it is.",
        MAX_LAG,
        least=1,
        broker_name="log.cleaner.max.compaction.lag.ms",
    ),
    TopicConfig(
        "max.message.bytes",
        ConfigType.INT,
        "",
        "The largest record batch; the broker's limits.message_bytes is the default, and the most.",
        MAX_BYTES,
        least=0,
        broker_name="message.max.bytes",
    ),
    TopicConfig(
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        "3600000",
        "How far in the future a record's own time may be (CreateTime); what is later is refused.",
        least=0,
        broker_name="log.message.timestamp.after.max.ms",
        by_gateway=True,
    ),
    TopicConfig(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        str(_LONG_MAX),
        "How far in the past a record's own time may be (CreateTime); what is older is refused.",
        least=0,
        broker_name="log.message.timestamp.before.max.ms",
        by_gateway=True,
    ),
    TopicConfig(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "CreateTime: records keep their producer's time. LogAppendTime: they get the broker's.",
        choices=("CreateTime", "LogAppendTime"),
        broker_name="log.message.timestamp.type",
        by_gateway=True,
    ),
    TopicConfig(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "0.5",
        "A compaction begins once so much of the topic is not compacted (to a hundredth).",
        DIRTY,
        least=0,
        most=1,
        broker_name="log.cleaner.min.cleanable.ratio",
    ),
    TopicConfig(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        "0",
        "What is younger is not compacted.",
        _of_compaction("min_lag_ms", _same, _same),
        least=0,
        broker_name="log.cleaner.min.compaction.lag.ms",
    ),
    TopicConfig("min.insync.replicas", ConfigType.INT, "1", _REPLICAS, least=1, broker_name="min.insync.replicas"),
    TopicConfig("preallocate", ConfigType.BOOLEAN, "false", _DISK),
    TopicConfig("remote.log.copy.disable", ConfigType.BOOLEAN, "false", _TIERED),
    TopicConfig("remote.log.delete.on.disable", ConfigType.BOOLEAN, "false", _TIERED),
    TopicConfig(
        "remote.storage.enable",
        ConfigType.BOOLEAN,
        "false",
        "Weir has no tiered storage of Kafka's kind, so it cannot be enabled.",
        choices=("false",),
    ),
    TopicConfig(
        "retention.bytes",
        ConfigType.LONG,
        "-1",
        "How much a partition keeps; below 0: no bound. What is kept is never less, and may be more by a ledger.",
        RETENTION_BYTES,
        broker_name="log.retention.bytes",
    ),
    TopicConfig(
        "retention.ms",
        ConfigType.LONG,
        str(7 * _DAY_MS),
        "How long records are kept after they were stored; -1: for ever. They go by whole ledgers.",
        RETENTION_MS,
        least=-1,
        broker_name="log.retention.ms",
    ),
    TopicConfig(
        "segment.bytes",
        ConfigType.INT,
        "",
        "A new ledger begins at this size, if that is less than the broker's storage.ledger_bytes.",
        SEGMENT_BYTES,
        least=_MIB,
        broker_name="log.segment.bytes",
    ),
    TopicConfig("segment.index.bytes", ConfigType.INT, "10485760", _DISK, least=4),
    TopicConfig("segment.jitter.ms", ConfigType.LONG, "0", _DISK, least=0),
    TopicConfig(
        "segment.ms",
        ConfigType.LONG,
        "",
        "A new ledger begins at this age, if that is less than the broker's storage.ledger_age.",
        SEGMENT_MS,
        least=1,
        broker_name="log.roll.ms",
    ),
    TopicConfig("unclean.leader.election.enable", ConfigType.BOOLEAN, "false", _REPLICAS),
)

#: What Kafka's brokers call a config that Weir's do not have; "": they have no name for it either.
SYNONYMS = {
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "log.index.interval.bytes",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "preallocate": "log.preallocate",
    "remote.log.copy.disable": "",
    "remote.log.delete.on.disable": "",
    "remote.storage.enable": "",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "",
}
CONFIGS = {config.name: config for config in TABLE}


def config_named(name: str) -> TopicConfig:
    """ConfigError, which names the nearest right one, if there is none of this name."""
    found = CONFIGS.get(name)
    if found is None:
        near = get_close_matches(name[:80], CONFIGS, n=1)
        hint = (
            f"did you mean {near[0]}?" if near else "see docs/reference/kafka-topics.md for those that there are"
        )
        raise ConfigError(f"Unknown topic config name: {name[:80]}", hint=hint)
    return found


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
