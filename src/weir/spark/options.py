"""What a query asked for, checked once and as values, which travel to the tasks.

The options of the data source: those of Spark's own Kafka source, and Weir's own on top.

An option that is in no list here is an error, which names the nearest one that is.

What a write asked for, checked once and as a value, which travels to the tasks.

Values of options: flags, numbers, spans, and offsets as Spark's Kafka source writes them.
"""

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from weir.client.kafka.cluster import Partition
from weir.client.kafka.settings import KafkaSettings, Login, TlsFiles, parse_servers
from weir.model.errors import ConfigError
from weir.wire.kafka.record_batch import Compression

#: As Spark's Kafka source has them, with the same meaning.
SOURCE = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "groupIdPrefix",
    "includeHeaders",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
)

#: Weir's own.
OWN = (
    "path",  # what load(...) is given: the topics, as in subscribe
    "subscription",
    "retain",
    "orderedTimestamps",
    "token",
    "valueFormat",
    "mode",  # what becomes of a value that does not fit, as in Spark's own readers
    "columnNameOfCorruptRecord",  # where its bytes go then, as in Spark's own readers
    "adminUrl",
    "lake",  # whether what the lake has of the topics is read, too
    "includeRaw",  # columns more: key and value as the bytes that they came as
    "seam",  # set by Weir itself: where the lake's part of a read ends, by partition
    "schemaTopic",  # whose schema the values have, if it is not their own topic's
)

#: Settings of Kafka's consumer that mean something here.
KAFKA = (
    "kafka.bootstrap.servers",
    "kafka.check.crcs",
    "kafka.client.id",
    "kafka.group.id",
    "kafka.isolation.level",
    "kafka.max.partition.fetch.bytes",
    "kafka.request.timeout.ms",
    "kafka.sasl.jaas.config",
    "kafka.sasl.mechanism",
    "kafka.sasl.password",
    "kafka.sasl.username",
    "kafka.security.protocol",
    "kafka.socket.connection.setup.timeout.ms",
    "kafka.ssl.ca.location",
    "kafka.ssl.certificate.location",
    "kafka.ssl.endpoint.identification.algorithm",
    "kafka.ssl.key.location",
    "kafka.ssl.key.password",
    "kafka.ssl.keystore.location",
    "kafka.ssl.keystore.type",
    "kafka.ssl.truststore.location",
    "kafka.ssl.truststore.type",
)

#: Taken, so that a job may keep them, and without effect: they tune what is not in this client.
WITHOUT_EFFECT = (
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "kafka.allow.auto.create.topics",
    "kafka.auto.commit.interval.ms",
    "kafka.auto.include.jmx.reporter",
    "kafka.client.dns.lookup",
    "kafka.client.rack",
    "kafka.connections.max.idle.ms",
    "kafka.default.api.timeout.ms",
    "kafka.enable.metrics.push",
    "kafka.exclude.internal.topics",
    "kafka.fetch.max.bytes",
    "kafka.fetch.max.wait.ms",
    "kafka.fetch.min.bytes",
    "kafka.group.instance.id",
    "kafka.group.protocol",
    "kafka.group.remote.assignor",
    "kafka.heartbeat.interval.ms",
    "kafka.max.poll.interval.ms",
    "kafka.max.poll.records",
    "kafka.metadata.max.age.ms",
    "kafka.metadata.recovery.rebootstrap.trigger.ms",
    "kafka.metadata.recovery.strategy",
    "kafka.metric.reporters",
    "kafka.metrics.num.samples",
    "kafka.metrics.recording.level",
    "kafka.metrics.sample.window.ms",
    "kafka.partition.assignment.strategy",
    "kafka.receive.buffer.bytes",
    "kafka.reconnect.backoff.max.ms",
    "kafka.reconnect.backoff.ms",
    "kafka.retry.backoff.max.ms",
    "kafka.retry.backoff.ms",
    "kafka.security.providers",
    "kafka.send.buffer.bytes",
    "kafka.session.timeout.ms",
    "kafka.socket.connection.setup.timeout.max.ms",
    "kafka.ssl.protocol",
)

#: Spark's Kafka source refuses these, since it decides them itself; so does this one.
REFUSED = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.enable.auto.commit": "give the query's positions a name with subscription",
    "kafka.interceptor.classes": "there are no interceptors here",
    "kafka.key.deserializer": "the key is a binary column; cast it",
    "kafka.key.serializer": "the key is a binary or string column; cast it",
    "kafka.value.deserializer": "the value is a binary column; cast it",
    "kafka.value.serializer": "the value is a binary or string column; cast it",
}

_KNOWN = {name.lower(): name for name in (*SOURCE, *OWN, *KAFKA, *WITHOUT_EFFECT)}
_REFUSED = {name.lower(): hint for name, hint in REFUSED.items()}


def known(options: Mapping[str, str], also: tuple[str, ...] = ()) -> dict[str, str]:
    """The options under the names as they are spelt here; ConfigError at the first that is none.

    `also` are names that a sink, or whoever builds on this, knows besides.
    """
    names = _KNOWN | {name.lower(): name for name in also}
    found: dict[str, str] = {}
    for given, value in options.items():
        name = names.get(given.lower())
        if name is None:
            raise _unknown(given, names)
        found[name] = value
    return found


def _unknown(given: str, names: Mapping[str, str]) -> ConfigError:
    if given.lower() in _REFUSED:
        return ConfigError(f"the option {given} cannot be set", hint=_REFUSED[given.lower()])
    near = get_close_matches(given.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {names[near[0]]}?" if near else "see docs/reference/spark.md for all of them"
    return ConfigError(f"there is no option {given}", hint=hint)


_SPAN = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
#: Beside a topic's partitions in a checkpoint: which topic of its name it is.
_ID = "id"
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def flag(name: str, text: str) -> bool:
    """`true` or `false`."""
    if text.strip().lower() not in ("true", "false"):
        raise ConfigError(f"{name} is {text!r}", hint="write true or false")
    return text.strip().lower() == "true"


def count(name: str, text: str, least: int = 1) -> int:
    """A whole number."""
    try:
        found = int(text)
    except ValueError:
        found = least - 1
    if found < least:
        raise ConfigError(f"{name} is {text!r}", hint=f"write a whole number, {least} or more")
    return found


def span_ms(name: str, text: str) -> int:
    """`15m`, `30s`, `100ms`; a bare number is milliseconds."""
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None:
        raise ConfigError(f"{name} is {text!r}", hint="write a span, as in 30s or 15m")
    return int(found[1]) * _UNIT_MS[found[2] or "ms"]


def by_partition(name: str, text: str, least: int) -> dict[Partition, int]:
    """`{"topic": {"0": 23, "1": -2}}`: a number for each partition."""
    try:
        parsed = json.loads(text)
        found = {
            Partition(topic, int(index)): number
            for topic, partitions in parsed.items()
            for index, number in partitions.items()
            if index != _ID  # of offsets that a query reported
        }
    except (ValueError, AttributeError):
        found = {}
    if not found or not all(type(number) is int and number >= least for number in found.values()):
        raise ConfigError(f"{name} is {text!r}", hint='write JSON, as in {"orders": {"0": 23, "1": 42}}')
    return found


def assigned(name: str, text: str) -> list[Partition]:
    """`{"topic": [0, 1]}`: the partitions to read."""
    try:
        parsed = json.loads(text)
        found = sorted(Partition(topic, index) for topic, indices in parsed.items() for index in indices)
    except (ValueError, AttributeError, TypeError):
        found = []
    if not found or not all(type(partition.index) is int and partition.index >= 0 for partition in found):
        raise ConfigError(f"{name} is {text!r}", hint='write JSON, as in {"orders": [0, 1]}')
    return found


def to_json(offsets: Mapping[Partition, int], ids: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Offsets as a checkpoint has them. The form is that of Spark's Kafka source, with the id of each topic beside
    its partitions, as far as `ids` names it."""
    found: dict[str, Any] = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.index)] = offsets[partition]
    for topic, parts in found.items():
        if ids and ids.get(topic):
            parts[_ID] = ids[topic]
    return found


def from_json(offsets: Mapping[str, Mapping[str, Any]]) -> dict[Partition, int]:
    """The offsets that `to_json` wrote."""
    return {
        Partition(topic, int(index)): offset
        for topic, parts in offsets.items()
        for index, offset in parts.items()
        if index != _ID
    }


def ids_of(offsets: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The topic ids that `to_json` wrote; older checkpoints, and those of Spark's Kafka source, have none."""
    return {topic: str(parts[_ID]) for topic, parts in offsets.items() if parts.get(_ID)}


def recreated(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Topics that were deleted and created again; not those whose id is unknown on either side."""
    return sorted(name for name, known in before.items() if known and now.get(name) and now[name] != known)


log = logging.getLogger(__name__)

EARLIEST, LATEST = -2, -1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_PROTOCOLS = {
    "PLAINTEXT": (False, False),
    "SSL": (True, False),
    "SASL_PLAINTEXT": (False, True),
    "SASL_SSL": (True, True),
}
_JAAS = re.compile(r'\b(username|password)\s*=\s*"([^"]*)"')
_DEFAULT_ADMIN_URL = "http://127.0.0.1:8080"
_DEFAULT_FETCH_BYTES = 16 * 1024 * 1024
_MAX_FETCH_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which partitions: exactly one of these is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[Partition, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Where to begin or end: everywhere at a word (EARLIEST, LATEST), at offsets, or at moments (in ms). With
    both, at offsets where there are some, else at the word."""

    word: int | None = None
    offsets: Mapping[Partition, int] | None = None
    moment: int | None = None
    moments: Mapping[Partition, int] | None = None


@dataclass(frozen=True, slots=True)
class Registry:
    """The admin REST that has the schemas, and what becomes of values that do not fit theirs."""

    url: str
    permissive: bool
    #: The column for the bytes of those that do not fit, if there is to be one.
    corrupt: str | None = None
    #: The topic whose schema the values have; None: their own.
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Everything about a read."""

    kafka: KafkaSettings
    wanted: Wanted
    start: OffsetSpec
    end: OffsetSpec
    #: Where no message is as late as the moment to begin at: begin at the end, rather than fail.
    start_at_end_if_none: bool = False
    committed: bool = True
    fail_on_data_loss: bool = True
    headers: bool = False
    verify: bool = True
    max_per_trigger: int | None = None
    min_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    #: Whether the query's position is kept, and under which name: None if it is Spark's for the query, behind a
    #: prefix.
    keep: bool = True
    subscription: str | None = None
    group_prefix: str = "spark"
    #: Whether messages stay in the topics until the query has read them.
    #: Whether messages stay until the query has read them; None: if it has a name.
    retain: bool | None = None
    #: Whether the query says that times grow along each partition, so that a latest one is an end.
    ordered: bool = False
    fetch_bytes: int = _DEFAULT_FETCH_BYTES
    #: Where the schemas are, if the values are to be typed by them.
    registry: Registry | None = None
    #: Whether the bytes of keys and values are columns of their own.
    raw: bool = False
    #: Whether what brokers no longer have is read from the lake; and the admin REST, which knows where that is,
    #: if it was named.
    lake: bool = True
    admin_url: str | None = None


def parse(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """ConfigError says which option is wrong, and what to write."""
    options = known(given)
    if streaming:
        _refuse(options, "a stream has no end", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    else:
        _ignore(options, "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
    strategy = options.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise ConfigError(f"startingOffsetsByTimestampStrategy is {strategy!r}", hint="write error or latest")
    return SourceOptions(
        kafka=connection(options),
        wanted=_wanted(options),
        start=_place(options, "starting", LATEST if streaming else EARLIEST, None if streaming else LATEST),
        end=_place(options, "ending", LATEST, EARLIEST),
        start_at_end_if_none=strategy == "latest",
        committed=_isolation(options.get("kafka.isolation.level", "read_committed")),
        fail_on_data_loss=_flag(options, "failOnDataLoss", True),
        headers=_flag(options, "includeHeaders", False),
        verify=_flag(options, "kafka.check.crcs", True),
        max_per_trigger=_count(options, "maxOffsetsPerTrigger"),
        min_per_trigger=_min_per_trigger(options),
        max_trigger_delay_ms=span_ms("maxTriggerDelay", options.get("maxTriggerDelay", "15m")),
        min_partitions=_count(options, "minPartitions"),
        max_records_per_partition=_count(options, "maxRecordsPerPartition"),
        keep=options.get("subscription") != "",
        subscription=options.get("subscription") or options.get("kafka.group.id") or None,
        group_prefix=options.get("groupIdPrefix") or "spark",
        retain=_retain(options),
        ordered=_flag(options, "orderedTimestamps", False),
        registry=_registry(options),
        raw=_flag(options, "includeRaw", False),
        lake=_flag(options, "lake", True),
        admin_url=options.get("adminUrl") or os.environ.get("WEIR_URL") or None,
        fetch_bytes=min(
            _count(options, "kafka.max.partition.fetch.bytes") or _DEFAULT_FETCH_BYTES, _MAX_FETCH_BYTES
        ),
    )


def connection(options: Mapping[str, str]) -> KafkaSettings:
    """How to reach the brokers, by names as `known` gives them."""
    servers = options.get("kafka.bootstrap.servers")
    if servers is None:
        raise ConfigError("kafka.bootstrap.servers is missing", hint="write host:9092")
    login = _login(options)
    protocol = options.get("kafka.security.protocol", "SASL_PLAINTEXT" if login else "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise ConfigError(f"kafka.security.protocol is {protocol!r}", hint=f"write one of {', '.join(_PROTOCOLS)}")
    secure, authenticated = _PROTOCOLS[protocol]
    if authenticated and login is None:
        raise ConfigError(f"{protocol} needs credentials", hint="give token, or kafka.sasl.jaas.config")
    return KafkaSettings(
        servers=parse_servers(servers),
        client_id=options.get("kafka.client.id", "weir-spark"),
        tls=_tls(options) if secure else None,
        login=login if authenticated else None,
        connect_timeout_s=count("", options.get("kafka.socket.connection.setup.timeout.ms", "10000")) / 1000,
        request_timeout_s=count("", options.get("kafka.request.timeout.ms", "30000")) / 1000,
    )


# --- parts ----------------------------------------------------------------------------------------------


def _login(options: Mapping[str, str]) -> Login | None:
    mechanism = options.get("kafka.sasl.mechanism", "PLAIN")
    if mechanism.upper() != "PLAIN":
        raise ConfigError(
            f"kafka.sasl.mechanism is {mechanism!r}", hint="PLAIN is served; its password is a token"
        )
    jaas = dict(_JAAS.findall(options.get("kafka.sasl.jaas.config", "")))
    user = options.get("kafka.sasl.username", jaas.get("username", "token"))
    password = options.get("token") or options.get("kafka.sasl.password") or jaas.get("password")
    password = password or os.environ.get("WEIR_TOKEN")
    return Login(user, _read_token(password)) if password else None


def _read_token(text: str) -> str:
    """A token, or `file:/path`; read on the driver, so that tasks need no such file."""
    if not text.startswith("file:"):
        return text
    try:
        return Path(text.removeprefix("file:").removeprefix("//")).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError(f"cannot read the token: {failure}", hint="check the option token") from None


def _tls(options: Mapping[str, str]) -> TlsFiles:
    for name in ("kafka.ssl.truststore.type", "kafka.ssl.keystore.type"):
        if options.get(name, "PEM").upper() != "PEM":
            raise ConfigError(f"{name} is {options[name]}", hint="convert it to PEM, which Python can read")
    keystore = options.get("kafka.ssl.keystore.location")
    return TlsFiles(
        ca=options.get("kafka.ssl.ca.location", options.get("kafka.ssl.truststore.location")),
        certificate=options.get("kafka.ssl.certificate.location", keystore),
        key=options.get("kafka.ssl.key.location"),
        password=options.get("kafka.ssl.key.password"),
        check_host=options.get("kafka.ssl.endpoint.identification.algorithm", "https") != "",
    )


def _wanted(options: Mapping[str, str]) -> Wanted:
    given = [name for name in ("assign", "subscribe", "subscribePattern", "path") if name in options]
    if len(given) != 1:
        raise ConfigError(
            f"{' and '.join(given)} are given" if given else "no topic is given",
            hint="give exactly one of subscribe, subscribePattern and assign, or load(topic)",
        )
    name, text = given[0], options[given[0]].strip()
    if name == "assign":
        return Wanted(partitions=tuple(assigned(name, text)))
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as bad:
            raise ConfigError(f"subscribePattern is {text!r}: {bad}", hint="write a regular expression") from None
        return Wanted(pattern=text)
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise ConfigError(f"{name} names no topic", hint="write names with commas between them")
    return Wanted(topics=topics)


def _place(options: Mapping[str, str], side: str, default: int, refused: int | None) -> OffsetSpec:
    """The first that is given: a moment, moments, offsets or a word. `refused`: the word that makes no sense."""
    if side == "starting" and (text := options.get("seam")) is not None:
        return OffsetSpec(word=EARLIEST, offsets=by_partition("seam", text, 0))
    if (text := options.get(f"{side}Timestamp")) is not None:
        return OffsetSpec(moment=count(f"{side}Timestamp", text, 0))
    if (text := options.get(f"{side}OffsetsByTimestamp")) is not None:
        return OffsetSpec(moments=by_partition(f"{side}OffsetsByTimestamp", text, 0))
    name = f"{side}Offsets"
    text = options.get(name)
    if text is None:
        return OffsetSpec(word=default)
    word = _WORDS.get(text.strip().lower())
    place = OffsetSpec(word=word) if word is not None else OffsetSpec(offsets=by_partition(name, text, EARLIEST))
    if refused is not None and (word == refused or refused in (place.offsets or {}).values()):
        raise ConfigError(f"{name} is {text!r}, which leaves nothing to read", hint="begin early, and end late")
    return place


def _registry(options: Mapping[str, str]) -> Registry | None:
    wanted, mode = options.get("valueFormat", "binary"), options.get("mode", "FAILFAST").upper()
    if wanted not in ("binary", "schema"):
        raise ConfigError(f"valueFormat is {wanted!r}", hint="write binary or schema")
    if mode not in ("FAILFAST", "PERMISSIVE"):
        raise ConfigError(f"mode is {mode!r}", hint="write FAILFAST or PERMISSIVE")
    corrupt = options.get("columnNameOfCorruptRecord") or None
    if corrupt is not None and (mode != "PERMISSIVE" or wanted != "schema"):
        raise ConfigError(
            "columnNameOfCorruptRecord is for values that may be wrong",
            hint="set valueFormat=schema and mode=PERMISSIVE with it",
        )
    if wanted == "binary":
        return None
    url = options.get("adminUrl") or os.environ.get("WEIR_URL") or _DEFAULT_ADMIN_URL
    schema = options.get("schemaTopic") or None
    return Registry(url, permissive=mode == "PERMISSIVE", corrupt=corrupt, topic=schema)


def _min_per_trigger(options: Mapping[str, str]) -> int | None:
    least, most = _count(options, "minOffsetsPerTrigger"), _count(options, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"minOffsetsPerTrigger is {least}, and maxOffsetsPerTrigger {most}",
            hint="wait for no more than is read",
        )
    return least


def _retain(options: Mapping[str, str]) -> bool | None:
    if "retain" not in options:
        return None
    wanted = _flag(options, "retain", False)
    if wanted and not (options.get("subscription") or options.get("kafka.group.id")):
        raise ConfigError("retain is set, and the query has no subscription", hint="name one with subscription")
    return wanted


def _isolation(text: str) -> bool:
    if text not in ("read_committed", "read_uncommitted"):
        raise ConfigError(f"kafka.isolation.level is {text!r}", hint="write read_committed or read_uncommitted")
    return text == "read_committed"


def _refuse(options: Mapping[str, str], why: str, *names: str) -> None:
    for name in names:
        if name in options:
            raise ConfigError(f"{name}: {why}", hint="leave it out")


def _ignore(options: Mapping[str, str], *names: str) -> None:
    """As Spark's Kafka source does: a job may read the same options as a table and as a stream."""
    for name in names:
        if name in options:
            log.warning("%s is ignored: a batch has no triggers", name)


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    return flag(name, options[name]) if name in options else default


def _count(options: Mapping[str, str], name: str) -> int | None:
    return count(name, options[name]) if name in options else None


#: Besides those of the connection: Spark's own for every sink, Kafka's for its producer, and Weir's.
SINK = (
    "topic",
    "sinkId",
    "sinkEpoch",
    "sinkTakeOver",
    "checkpointLocation",
    "queryName",
    "kafka.compression.type",
    "kafka.transaction.timeout.ms",
)
#: Of Kafka's producer, taken so that a job may keep them: what they tune is decided here.
_WITHOUT_EFFECT = (
    "kafka.acks",
    "kafka.batch.size",
    "kafka.buffer.memory",
    "kafka.compression.gzip.level",
    "kafka.compression.lz4.level",
    "kafka.compression.zstd.level",
    "kafka.delivery.timeout.ms",
    "kafka.enable.idempotence",
    "kafka.linger.ms",
    "kafka.max.block.ms",
    "kafka.max.in.flight.requests.per.connection",
    "kafka.max.request.size",
    "kafka.metadata.max.idle.ms",
    "kafka.partitioner.adaptive.partitioning.enable",
    "kafka.partitioner.availability.timeout.ms",
    "kafka.retries",
)
#: Transactions of tasks wait for the slowest task, and then for the driver: they may take as long as an epoch may.
_DEFAULT_TIMEOUT_MS = 15 * 60_000


@dataclass(frozen=True, slots=True)
class SinkOptions:
    kafka: KafkaSettings
    topic: str | None
    compression: Compression
    timeout_ms: int
    admin_url: str | None
    sink_id: str | None
    #: Of a batch write: which epoch of `sink_id` it is, so that writing it again writes nothing.
    sink_epoch: int | None
    checkpoint: str | None
    #: The id of the query whose sink this one continues.
    take_over: str


def parse_sink(given: Mapping[str, str]) -> SinkOptions:
    """ConfigError says which option is wrong, and what to write."""
    options = known(given, (*SINK, *_WITHOUT_EFFECT))
    compression = options.get("kafka.compression.type", "none").upper()
    if compression not in Compression.__members__:
        names = ", ".join(one.name.lower() for one in Compression)
        raise ConfigError(f"kafka.compression.type is {compression.lower()!r}", hint=f"write one of {names}")
    timeout = options.get("kafka.transaction.timeout.ms", str(_DEFAULT_TIMEOUT_MS))
    if not timeout.isdigit() or not int(timeout):
        raise ConfigError(f"kafka.transaction.timeout.ms is {timeout!r}", hint="write milliseconds")
    epoch = options.get("sinkEpoch")
    if epoch is not None and (not epoch.isdigit() or "sinkId" not in options):
        raise ConfigError(f"sinkEpoch is {epoch!r}", hint="write the number of an epoch, and give sinkId")
    take_over = options.get("sinkTakeOver", "")
    if take_over and "sinkId" not in options:
        raise ConfigError("sinkTakeOver is set without sinkId", hint="give the sinkId of the query to continue")
    return SinkOptions(
        kafka=connection(options),
        topic=options.get("topic") or options.get("path"),
        compression=Compression[compression],
        timeout_ms=int(timeout),
        admin_url=options.get("adminUrl"),
        sink_id=options.get("sinkId"),
        sink_epoch=None if epoch is None else int(epoch),
        checkpoint=options.get("checkpointLocation"),
        take_over=take_over,
    )


def stream_identity(options: SinkOptions) -> str:
    """Which stream this is, the same after a restart: what was named, else the query of the checkpoint, else its
    place."""
    if options.sink_id is not None:
        return options.sink_id
    if options.checkpoint is None:
        raise ConfigError("the stream has no name that outlives it", hint="give checkpointLocation, or sinkId")
    place = options.checkpoint.removeprefix("file:")
    try:
        found = json.loads(Path(place, "metadata").read_text(encoding="utf-8").splitlines()[-1])
        return f"spark-{found['id']}"
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return f"spark-{options.checkpoint}"
