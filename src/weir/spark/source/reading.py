"""One range of offsets, read as Arrow: what a task of Spark does.

The schemas of the topics that a query reads, asked of the registry on the driver.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from weir.client.admin import Access
from weir.client.kafka.cluster import Cluster
from weir.client.kafka.fetch import Fetched, Fetcher, starts
from weir.client.kafka.settings import KafkaSettings, TlsFiles
from weir.client.schemas import schemas_by, topic_of
from weir.model.errors import ConfigError, DataLostError, OffsetTrimmedError, TopicNotFoundError, WireError
from weir.spark.columns import RAW_KEY, RAW_VALUE
from weir.spark.options import SourceOptions
from weir.spark.records.decoder import BatchTable, Decoder, all_of, committed_of
from weir.spark.source.planning import Losses, Range, partitions_of
from weir.spark.values.typed import ValueSchema, value_schema
from weir.spark.workers import borrowed, settle

if TYPE_CHECKING:
    from weir.spark.lake.history import TopicHistory


#: The first answer is small, since the range may be; it says how large the messages are.
_FIRST_BYTES = 1024 * 1024
_LEAST_BYTES = 64 * 1024
#: Answers without a single batch, each after a wait of half a second, where there should be some.
_MAX_EMPTY = 60


def read_range(
    options: SourceOptions,
    wanted: Range,
    values: Mapping[str, ValueSchema] | None = None,
    losses: Losses | None = None,
    *,
    protocol: bool = False,
    topic_id: str = "",
) -> Iterator[Any]:
    """Arrow batches of the range, in the order of their offsets; with `values`, typed by their topic's. `losses`
    is told what is no longer there. `protocol`: a column more, with the producers' protocol. `topic_id`: the range
    is of the topic with this id; DataLostError if another one has taken its name."""
    topic, versions = wanted.partition.topic, False
    typed: Callable[[Any], Any] = _as_it_is
    if values:
        schema = _schema(topic, values)
        corrupt = None if options.registry is None else options.registry.corrupt
        typed, versions = schema.decoder(corrupt), schema.by_version
        if versions and not options.headers:
            typed = _without_headers(typed)
    if options.raw:
        typed = _with_raw(typed)
    decoder = Decoder(
        topic, wanted.partition.index, options.headers or versions, verify=options.verify, protocol=protocol
    )
    told = losses or Losses(options.fail_on_data_loss)
    with borrowed(options.kafka) as cluster:
        for first, found in _tables(cluster, options, wanted, told, fill=options.lake and not protocol):
            if isinstance(found, InTheLake):
                yield from found.history.read(found.range, options, values)
            else:
                table, chosen = found
                yield from map(typed, decoder.decode(table, first, wanted.end, chosen))
        if topic_id:
            # Ids are not used again: if it is the same one now, then all that was fetched is of it.
            check_same_topic(cluster, topic, topic_id)
    settle()


def check_same_topic(cluster: Cluster, topic: str, topic_id: str) -> None:
    """DataLostError if the topic of this name is another one by now."""
    try:
        now = cluster.topic_id(topic)
    except TopicNotFoundError:
        return  # what was read was there
    if any(bytes.fromhex(now)) and now != topic_id:
        raise DataLostError(
            f"topic {topic} was deleted and created again while it was read (id {topic_id}, then {now})",
            hint="start the query again",
        )


@dataclass(frozen=True, slots=True)
class InTheLake:
    """A range that brokers no longer have, and where it is."""

    history: "TopicHistory"
    range: Range


def in_the_lake(options: SourceOptions, wanted: Range) -> InTheLake | None:
    """What the lake has of a range; None if the topic is not in it."""
    from weir.spark.lake.history import find_topic_history

    history = find_topic_history(options, wanted.partition.topic)
    return None if history is None else InTheLake(history, history.part_of(wanted))


def _schema(topic: str, values: Mapping[str, ValueSchema]) -> ValueSchema:
    if topic not in values:
        raise ConfigError(
            f"{topic} came after the query had begun, and its schema is not known", hint="restart it"
        )
    return values[topic]


def _without_headers(typed: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The headers were only asked for because they say the schema's version."""
    return lambda batch: typed(batch).drop_columns(["headers"])


def _with_raw(typed: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """With key and value as they came, behind all other columns."""

    def both(batch: Any) -> Any:
        found = typed(batch)
        return found.append_column(RAW_KEY, batch.column("key")).append_column(RAW_VALUE, batch.column("value"))

    return both


def _as_it_is(batch: Any) -> Any:
    return batch


def _tables(
    cluster: Cluster, options: SourceOptions, wanted: Range, losses: Losses, *, fill: bool
) -> Iterator[tuple[int, tuple[BatchTable, NDArray[np.bool_]] | InTheLake]]:
    """What is fetched, and the offset that is wanted first. The next request goes out before one is yielded.
    `fill`: what is gone from the brokers may be in the lake."""
    fetcher = Fetcher(cluster, wanted.partition, committed=options.committed)
    at, empty = wanted.start, 0
    fetcher.ask(at, min(_FIRST_BYTES, options.fetch_bytes))
    while at < wanted.end:
        try:
            fetched = fetcher.take()
        except OffsetTrimmedError:
            first, at = at, _past_the_gap(cluster, wanted, at)
            there = in_the_lake(options, Range(wanted.partition, first, at)) if fill else None
            reached = first if there is None else there.range.end
            if reached < at:
                losses.report(wanted.partition, reached, at)
            if at < wanted.end:
                fetcher.ask(at, _FIRST_BYTES)
            if there is not None:
                yield first, there
            continue
        table, first = BatchTable(fetched.records), at
        if len(table):
            at, empty = max(at, table.next_offset), 0
        else:
            empty += 1
            _check_empty(wanted, at, fetched, empty)
        if at < wanted.end:
            fetcher.ask(at, _bytes_for(wanted.end - at, at - first, len(fetched.records), options.fetch_bytes))
        if len(table):
            yield first, (table, committed_of(table, fetched.aborted) if options.committed else all_of(table))


def _past_the_gap(cluster: Cluster, wanted: Range, at: int) -> int:
    """Retention was faster: where to go on."""
    oldest = starts(cluster, [wanted.partition])[wanted.partition]
    return wanted.end if oldest <= at else min(oldest, wanted.end)


def _check_empty(wanted: Range, at: int, fetched: Fetched, empty: int) -> None:
    """Nothing came although there should be something: wait for it, but not for ever."""
    if len(fetched.records) or empty > _MAX_EMPTY:
        raise WireError(
            f"the broker gave no batch of {wanted.partition} at offset {at}, below {fetched.end_offset}"
        )


def _bytes_for(offsets: int, got: int, size: int, most: int) -> int:
    """How much to ask for, if the rest is like what came last."""
    if got <= 0:
        return min(_FIRST_BYTES, most)
    return max(_LEAST_BYTES, min(most, offsets * size * 5 // (got * 4)))


def access_by(url: str, kafka: KafkaSettings, patience_s: float = 60.0) -> Access:
    """The admin REST, by what a query comes in with to the brokers."""
    token = None if kafka.login is None else kafka.login.password
    tls = kafka.tls or TlsFiles()
    return Access(url, token, tls.ca, patience_s, tls.certificate, tls.key)


def value_schemas(options: SourceOptions) -> dict[str, ValueSchema]:
    """By topic; empty if the values stay bytes. ConfigError if the topics' values differ in type."""
    registry = options.registry
    if registry is None:
        return {}
    with Cluster(options.kafka) as cluster:
        topics = sorted({partition.topic for partition in partitions_of(cluster, options)})
    access = access_by(registry.url, options.kafka)
    found = {}
    for topic in topics:
        versions = schemas_by(access, topic_of(registry.topic or topic))
        found[topic] = value_schema(topic, list(versions), permissive=registry.permissive)
    for topic in topics[1:]:
        if (found[topic].type, found[topic].key_type) != (found[topics[0]].type, found[topics[0]].key_type):
            raise ConfigError(
                f"the values of {topics[0]} and {topic}, or their keys, differ in type",
                hint="read them one by one, and unite them",
            )
    if not found:
        raise ConfigError("no topic has values to be typed", hint="name topics that exist")
    return found
