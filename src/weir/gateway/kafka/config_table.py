"""Kafka's topic configs as one table: name, type, default, and meaning in Weir.

A config that Weir honors maps to a policy of the topic, which every protocol and the admin API can set. Weir
stores and shows the other configs, and documents that it does not apply them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import IntEnum
from typing import Any

from weir.model.errors import ConfigError
from weir.model.policies import Cleanup, LogCompaction, Policies, Retention, Roll

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
    """Maps a config to a field of the topic's policies."""

    #: The field of `Policies`.
    field: str
    #: Reads the config's value from the effective policies; None: the broker's default applies.
    of: Callable[[Policies], Any]
    #: Writes the value into the topic's own policies; `holds`: the effective policies of all levels.
    into: Callable[[Policies, Policies, Any], Policies]


@dataclass(frozen=True, slots=True)
class TopicConfig:
    name: str
    kind: ConfigType
    default: str
    #: Documentation: the effect of the config in Weir.
    meaning: str
    part: Part | None = None
    least: float = -_LONG_MAX - 1
    most: float = _LONG_MAX
    choices: tuple[str, ...] = ()
    #: Invalid numbers between `least` and `most`.
    never: tuple[int, ...] = ()
    #: The pattern of each word of a list.
    words: str = ""
    #: The name of the equivalent broker config.
    broker_name: str = ""
    #: Whether a list of `choices` may be empty.
    may_be_empty: bool = False
    #: Stored as a property that the gateway applies, not as a policy.
    by_gateway: bool = False

    @property
    def honoured(self) -> bool:
        return self.part is not None or self.by_gateway

    def parse(self, text: str) -> Any:
        """Parse and validate a value; ConfigError."""
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


# --- honored configs ----------------------------------------------------------------------------------------


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
#: Kafka's "no bound" is the largest number.
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
    # None: the broker's limit. A size of 0 rejects everything, because every batch is larger.
    lambda own, holds, size: replace(own, max_message_bytes=0 if size is None else max(1, size)),
)

_NOT = "Stored and shown, not applied: "
_DISK = _NOT + "storage.* in Weir's own configuration controls how it writes to disk."
_REPLICAS = _NOT + "messages are replicated as the broker's ledgers are, the same for all topics."
_REPLICA = r"[0-9]+:[0-9]+"
_TIERED = _NOT + "Weir has no tiered storage of Kafka's kind."
_LEVEL = _NOT + "batches stay as their producers compressed them."

TABLE = (
    TopicConfig(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        "delete: removes old messages according to retention.*. compact: keeps the latest message of each key. "
        "Both can be combined. Empty: keeps all messages.",
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
        "Batches stay as their producers compressed them; values other than producer are stored, not applied.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        broker_name="compression.type",
    ),
    TopicConfig("compression.zstd.level", ConfigType.INT, "3", _LEVEL, least=-131_072, most=22),
    TopicConfig(
        "delete.retention.ms",
        ConfigType.LONG,
        str(_DAY_MS),
        "How long a tombstone (a record without a value) stays readable after the first compaction that finds it.",
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
        "Records older than this are compacted, regardless of min.cleanable.dirty.ratio.",
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
        "How far in the future a record's CreateTime may be; later records are refused.",
        least=0,
        broker_name="log.message.timestamp.after.max.ms",
        by_gateway=True,
    ),
    TopicConfig(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        str(_LONG_MAX),
        "How far in the past a record's CreateTime may be; older records are refused.",
        least=0,
        broker_name="log.message.timestamp.before.max.ms",
        by_gateway=True,
    ),
    TopicConfig(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "CreateTime: records keep the producer's timestamp. LogAppendTime: records get the broker's time.",
        choices=("CreateTime", "LogAppendTime"),
        broker_name="log.message.timestamp.type",
        by_gateway=True,
    ),
    TopicConfig(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "0.5",
        "A compaction begins when this ratio of the topic is not compacted (rounded to hundredths).",
        DIRTY,
        least=0,
        most=1,
        broker_name="log.cleaner.min.cleanable.ratio",
    ),
    TopicConfig(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        "0",
        "Records younger than this are not compacted.",
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
        "Bytes that a partition retains; below 0: no bound. It retains at least this, at most one ledger more.",
        RETENTION_BYTES,
        broker_name="log.retention.bytes",
    ),
    TopicConfig(
        "retention.ms",
        ConfigType.LONG,
        str(7 * _DAY_MS),
        "How long records are retained after they were stored; -1: forever. Retention deletes whole ledgers.",
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

#: Kafka's broker config for each topic config without one in Weir; "": Kafka has none either.
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
    """Find a config; ConfigError for an unknown name, with the most similar name as a hint."""
    found = CONFIGS.get(name)
    if found is None:
        near = get_close_matches(name[:80], CONFIGS, n=1)
        hint = f"did you mean {near[0]}?" if near else "see docs/reference/kafka-topics.md for the known configs"
        raise ConfigError(f"Unknown topic config name: {name[:80]}", hint=hint)
    return found
