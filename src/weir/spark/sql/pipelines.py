"""A stream as a running query of Spark: from its definition to its topic, each micro-batch exactly once."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from weir.client.admin import join, topic_path
from weir.client.blocking import Access, ask_v2
from weir.client.kafka.cluster import Cluster
from weir.client.sinks import forget
from weir.model.errors import BrokerError, NotAllowedError, SqlError, WeirError
from weir.model.sql_streams import SqlStream
from weir.model.topics import TopicName
from weir.spark.source.options import connection
from weir.spark.sql.cluster import WeirCluster, kafka_name, table_name
from weir.spark.sql.output import Messages, messages
from weir.spark.sql.queries import Query, find_query, tokenize
from weir.spark.sql.tables import Tables

#: How often a stream looks for new messages.
_TRIGGER = "500 milliseconds"
_READ = ("maxOffsetsPerTrigger", "failOnDataLoss")


def mode_of(query: Query, options: Mapping[str, str]) -> str:
    """Groups without a watermark never end, so their rows are written again as they change; else each row once."""
    return options.get("mode") or ("update" if query.aggregates and not query.watermarks else "append")


def prepare(
    tables: Tables, place: WeirCluster, name: TopicName, query: Query, options: Mapping[str, str]
) -> Messages:
    """Plan the query, and see to it that its topic exists and has its schema. SqlError if it can be no stream."""
    sources = tables.topics(query)
    if not sources:
        raise SqlError("a stream reads topics, and this query names none")
    if name in sources.values():
        raise SqlError(f"{table_name(name)} would read what it writes", hint="choose another name")
    read = {option: options[option] for option in _READ if option in options}
    read["startingOffsets"] = options.get("start", "earliest")
    read["subscription"] = subscription_of(name)
    found = messages(tables.frame(query, streaming=True, options=read), name.local)
    _make_topic(place, name, options.get("partitions"))
    if found.schema is not None:
        _register(place.access, name, found.schema)
    return found


def start(tables: Tables, place: WeirCluster, stream: SqlStream, checkpoint: str) -> StreamingQuery:
    """Let it run from where its checkpoint says."""
    query = find_query(tokenize(stream.sql), stream.sql, safe=True)
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


def clean_up(place: WeirCluster, stream: SqlStream) -> None:
    """Forget what a dropped stream left at the broker. Its topic stays."""
    with suppress(WeirError):
        forget(place.access, sink_of(stream))
    for source in stream.sources:
        with suppress(WeirError):
            path = topic_path(source, "subscription", subscription_of(stream.name))
            ask_v2(place.access, "DELETE", f"{path}?force=true")


def sink_of(stream: SqlStream) -> str:
    return f"stream-{stream.id}"


def subscription_of(name: TopicName) -> str:
    """Under which the sources show how far the stream is."""
    return f"stream-{table_name(name)}"


def _make_topic(place: WeirCluster, name: TopicName, partitions: str | None) -> None:
    if partitions is not None:
        with suppress(NotAllowedError):  # it exists, and keeps its partitions
            ask_v2(place.access, "PUT", topic_path(name, "partitions"), int(partitions))
    with Cluster(connection(place.options)) as cluster:
        cluster.partitions([kafka_name(name)], create=True)


def _register(access: Access, name: TopicName, schema: str) -> None:
    path = join("schemas", name.namespace.tenant, name.namespace.name, name.local, "schema")
    with suppress(BrokerError):
        if _fields_of(ask_v2(access, "GET", path)) == json.loads(schema)["fields"]:
            return
    try:
        ask_v2(access, "POST", path, {"type": "JSON", "schema": schema, "properties": {}})
    except BrokerError as refused:
        raise SqlError(
            f"the columns do not go with the schema that {table_name(name)} has: {refused.what}",
            hint="choose another name, or delete the schema: weir schemas delete",
        ) from None


def _fields_of(answer: Any) -> Any:
    """The fields of a JSON schema as the registry tells it."""
    if not isinstance(answer, dict) or answer.get("type") != "JSON":
        return None
    try:
        return json.loads(answer["data"])["fields"]
    except (KeyError, ValueError, TypeError):
        return None
