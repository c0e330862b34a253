"""A stream as a running query of Spark: from its definition to its topic, each micro-batch exactly once."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from weir.client.admin import join, topic_path
from weir.client.blocking import Access, ask_v2
from weir.client.kafka.cluster import Cluster
from weir.client.registry import kafka_name
from weir.client.sinks import forget
from weir.model.errors import BrokerError, InvalidNameError, NotAllowedError, SqlError, WeirError
from weir.model.sql_streams import SqlStream, check_query_size
from weir.model.topics import TopicName
from weir.spark.source.options import connection
from weir.spark.sql.cluster import WeirCluster, table_name
from weir.spark.sql.output import Messages, messages
from weir.spark.sql.plan_safety import check_stream
from weir.spark.sql.queries import Query
from weir.spark.sql.stream_options import output_mode, poison_mode
from weir.spark.sql.table_options import DEADLETTER
from weir.spark.sql.tables import Tables, as_sent

#: How often a stream looks for new messages.
_TRIGGER = "500 milliseconds"
#: What Spark says of a query whose sources are not there yet; how long they are waited for, and how often asked.
_BEGINNING = "Initializing"
_SOURCES_S, _LOOK_S = 5.0, 0.05
_READ = ("maxOffsetsPerTrigger", "failOnDataLoss")
_MOST_PARTITIONS = 1_000


class RunningStream(Protocol):
    """What the runner wants of a query."""

    @property
    def isActive(self) -> bool: ...

    @property
    def recentProgress(self) -> Sequence[Any]: ...

    def exception(self) -> Exception | None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StreamWithDeadLetters:
    """Both run, or neither."""

    stream: RunningStream
    dead_letters: RunningStream

    @property
    def isActive(self) -> bool:
        return self.stream.isActive and self.dead_letters.isActive

    @property
    def recentProgress(self) -> Sequence[Any]:
        return self.stream.recentProgress

    def exception(self) -> Exception | None:
        return self.stream.exception() or self.dead_letters.exception()

    def stop(self) -> None:
        self.stream.stop()
        self.dead_letters.stop()


def mode_of(query: Query, options: Mapping[str, str]) -> str:
    """Groups without a watermark never end, so their rows are written again as they change; else each row once."""
    return output_mode(options) or ("update" if query.aggregates and not query.watermarks else "append")


def prepare(
    tables: Tables, place: WeirCluster, name: TopicName, query: Query, options: Mapping[str, str]
) -> Messages:
    """Plan the query, and see to it that its topic exists and has its schema. SqlError if it can be no stream."""
    found = plan(tables, place, name, query, options)
    make_topic(place, name, options.get("partitions"))
    if found.schema is not None:
        register_schema(place.access, name, found.schema)
    return found


def plan(
    tables: Tables, place: WeirCluster, name: TopicName, query: Query, options: Mapping[str, str]
) -> Messages:
    """What a stream would write; nothing is made. SqlError if it can be no stream."""
    sources = tables.topics(query)
    if not sources:
        raise SqlError("a stream reads topics, and this query names none")
    if name in sources.values():
        raise SqlError(f"{table_name(name)} would read what it writes", hint="choose another name")
    if poison_mode(options) == DEADLETTER and dead_letter_topic(name, options) in (name, *sources.values()):
        raise SqlError("the topic of the dead letters is one of the stream's own", hint="choose another name")
    read = {
        **_read(options),
        "mode": poison_mode(options),
        "subscription": subscription_of(name),
        **as_sent(query),
    }
    frame = tables.frame(query, streaming=True, options=read)
    check_stream(frame)
    found = messages(frame, name.local)
    if found.schema is not None:
        check_registered(place.access, name, found.schema)
    return found


def _read(options: Mapping[str, str]) -> dict[str, str]:
    read = {option: options[option] for option in _READ if option in options}
    return {**read, "startingOffsets": options.get("start", "earliest")}


def start(tables: Tables, place: WeirCluster, stream: SqlStream, checkpoint: str) -> RunningStream:
    """Let it run from where its checkpoint says; and beside it what writes its dead letters, if it has any."""
    running = _start(tables, place, stream, checkpoint)
    if poison_mode(stream.options) != DEADLETTER:
        return running
    _wait_for_sources(running)
    try:
        return StreamWithDeadLetters(running, start_dead_letters(tables, place, stream, checkpoint))
    except BaseException:
        running.stop()
        raise


def _wait_for_sources(query: StreamingQuery) -> None:
    """Each query starts a Python process for its source, which has 10 s to load PySpark and come to Spark: two
    at once hinder each other on a busy machine. Not for long: who waits here is who renews the lease."""
    deadline = time.monotonic() + _SOURCES_S
    while query.isActive and time.monotonic() < deadline:
        if not str(query.status["message"]).startswith(_BEGINNING):
            return
        time.sleep(_LOOK_S)


def _start(tables: Tables, place: WeirCluster, stream: SqlStream, checkpoint: str) -> StreamingQuery:
    check_query_size(stream.sql)  # an earlier release may have stored it, and checked less
    query = Query.of(stream.sql, safe=True)
    for topic in tables.topics(query).values():
        if topic not in stream.sources:
            raise SqlError(f"{table_name(topic)} is not among the sources of {table_name(stream.name)}")
    written = prepare(tables, place, stream.name, query, stream.options)
    mode = mode_of(query, stream.options)
    sink = {**place.options, "topic": kafka_name(stream.name), "sinkId": sink_of(stream)}
    writer = (
        written.frame.writeStream.queryName(stream.id)
        .outputMode(mode)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=stream.options.get("trigger", _TRIGGER))
    )
    if mode == "append":
        return writer.format("weir").options(**sink).start()
    # Spark lets a sink written in Python take rows in append mode only; a batch of its own it takes in any.
    return writer.foreachBatch(_write_epoch(sink)).start()


def _write_epoch(sink: Mapping[str, str]) -> Callable[[DataFrame, int], None]:
    def write(frame: DataFrame, epoch: int) -> None:
        frame.write.format("weir").options(**sink, sinkEpoch=str(epoch)).mode("append").save()

    return write


def start_dead_letters(tables: Tables, place: WeirCluster, stream: SqlStream, checkpoint: str) -> StreamingQuery:
    """What the stream leaves out, each once, into the topic of its dead letters."""
    name, read = dead_letter_topic(stream.name, stream.options), _read(stream.options)
    read["subscription"] = _dead_subscription(stream.name)
    make_topic(place, name, None)
    frames = [tables.dead_letters(source, read) for source in stream.sources]
    frame = frames[0]
    for one in frames[1:]:
        frame = frame.unionByName(one)
    sink = {**place.options, "topic": kafka_name(name), "sinkId": _dead_sink(stream)}
    return (
        frame.writeStream.queryName(f"{stream.id}-dead-letters")
        .outputMode("append")
        .option("checkpointLocation", f"{checkpoint}/dead-letters")
        .trigger(processingTime=stream.options.get("trigger", _TRIGGER))
        .format("weir")
        .options(**sink)
        .start()
    )


def dead_letter_topic(name: TopicName, options: Mapping[str, str]) -> TopicName:
    """In the stream's own namespace: its runner may write everywhere, and whoever defined it may not."""
    given = options.get("dead_letter_topic", f"{name.local}-DLQ")
    try:
        found = TopicName.parse(given if "/" in given else f"{name.namespace}/{given}")
    except InvalidNameError as bad:
        raise SqlError(f"dead_letter_topic is {given!r}: {bad.what}", hint=bad.hint) from None
    if found.namespace != name.namespace or found.partition is not None:
        raise SqlError(f"dead_letter_topic is {given!r}", hint=f"name a topic of {name.namespace}")
    return found


def clean_up(place: WeirCluster, stream: SqlStream) -> None:
    """Forget what a dropped stream left at the broker. Its topic stays."""
    for sink in (sink_of(stream), _dead_sink(stream)):
        with suppress(WeirError):
            forget(place.access, sink)
    for source in stream.sources:
        for subscription in (subscription_of(stream.name), _dead_subscription(stream.name)):
            with suppress(WeirError):
                path = topic_path(source, "subscription", subscription)
                ask_v2(place.access, "DELETE", f"{path}?force=true")


def sink_of(stream: SqlStream) -> str:
    return f"stream-{stream.id}"


def _dead_sink(stream: SqlStream) -> str:
    return f"{sink_of(stream)}-dead"


def _dead_subscription(name: TopicName) -> str:
    return f"{subscription_of(name)}-DLQ"


def subscription_of(name: TopicName) -> str:
    """Under which the sources show how far the stream is."""
    return f"stream-{table_name(name)}"  # as SqlStream.subscription


def make_topic(place: WeirCluster, name: TopicName, partitions: str | None) -> None:
    if partitions is not None:
        _check_partitions(partitions)
        with suppress(NotAllowedError):  # it exists, and keeps its partitions
            ask_v2(place.access, "PUT", topic_path(name, "partitions"), int(partitions))
    with Cluster(connection(place.options)) as cluster:
        cluster.partitions([kafka_name(name)], create=True)


def _check_partitions(given: str) -> None:
    """The runner makes the topic, with more rights than the role that has written this."""
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= _MOST_PARTITIONS:
        raise SqlError(f"partitions is {given[:20]!r}", hint=f"write a number from 1 to {_MOST_PARTITIONS}")


def register_schema(access: Access, name: TopicName, schema: str) -> None:
    if _is_registered(access, name, schema):
        return
    try:
        ask_v2(access, "POST", _schema_path(name, "schema"), _body(schema))
    except BrokerError as refused:
        raise _unfit(name, refused.what) from None


def check_registered(access: Access, name: TopicName, schema: str) -> None:
    """Whether it would be taken, as far as the registry says so before."""
    if _is_registered(access, name, schema):
        return
    found: Any = None
    with suppress(BrokerError):  # there is no such topic yet
        found = ask_v2(access, "POST", _schema_path(name, "compatibility"), _body(schema))
    if isinstance(found, dict) and False in (found.get("isCompatibility"), found.get("compatibility")):
        raise _unfit(name, "they are not compatible")


def _is_registered(access: Access, name: TopicName, schema: str) -> bool:
    with suppress(BrokerError):
        return bool(
            _fields_of(ask_v2(access, "GET", _schema_path(name, "schema"))) == json.loads(schema)["fields"]
        )
    return False


def _schema_path(name: TopicName, what: str) -> str:
    return join("schemas", name.namespace.tenant, name.namespace.name, name.local, what)


def _body(schema: str) -> dict[str, Any]:
    return {"type": "JSON", "schema": schema, "properties": {}}


def _unfit(name: TopicName, why: str) -> SqlError:
    return SqlError(
        f"the columns do not go with the schema that {table_name(name)} has: {why}",
        hint="choose another name, or delete the schema: weir schemas delete",
    )


def _fields_of(answer: Any) -> Any:
    """The fields of a JSON schema as the registry tells it."""
    if not isinstance(answer, dict) or answer.get("type") != "JSON":
        return None
    try:
        return json.loads(answer["data"])["fields"]
    except (KeyError, ValueError, TypeError):
        return None
