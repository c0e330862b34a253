"""What a query asked for, checked once and as values, which travel to the tasks."""

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weir.client.kafka.cluster import Partition
from weir.client.kafka.settings import KafkaSettings, Login, TlsFiles, parse_servers
from weir.model.errors import ConfigError
from weir.spark.source.option_table import known
from weir.spark.source.option_values import assigned, by_partition, count, flag, span_ms

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
