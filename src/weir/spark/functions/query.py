"""What Spark's tasks do for a function: Arrow batches in and out, and state by key through transformWithState.

A function as a streaming query: inputs, the tasks that call it, and what they give, each micro-batch once.

The stream that a function reads on Spark: the data source `weir`, with inputs that come and go by updates.

For any other query, a topic that it has read and that is not among its topics any more is a loss. Here it is what
the user has asked for: its position is forgotten, and not told to the brokers, who would make its subscription
again. And a topic that is new is read from where its subscription is: what came since that was made is kept for
the function. An input that was deleted and created again is read from its start.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from weir.client.admin import Access
from weir.client.kafka.cluster import Partition
from weir.client.kafka.groups import committed
from weir.client.schemas import topic_of
from weir.functions.executor_protocol import Item, SchemaVersion
from weir.functions.invocation import States
from weir.functions.micro_batch import DEAD, FAILED, SENT, InPlace, OutRow
from weir.functions.options import from_text
from weir.functions.subscriptions import Place, kafka_name, schemas_of_topic
from weir.functions.values import LaterVersions, Values
from weir.model.definitions import Function
from weir.model.topics import TopicName
from weir.spark.options import LATEST, parse, to_json
from weir.spark.source.batch_reader import WeirSource
from weir.spark.source.planning import Offsets, partitions_of, start_offsets
from weir.spark.source.streaming import Json, TopicStreamReader
from weir.spark.tables.names import WeirCluster

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


log = logging.getLogger(__name__)


class FunctionSource(WeirSource):
    """`spark.readStream.format("weir-function")`."""

    @classmethod
    def name(cls) -> str:
        return "weir-function"

    def streamReader(self, schema: StructType) -> "FunctionReader":
        return FunctionReader(parse(self._given, streaming=True))


class FunctionReader(TopicStreamReader):
    """Its options name topics and a subscription."""

    def initialOffset(self) -> Json:
        if self._options.start.word != LATEST:
            return super().initialOffset()
        partitions = partitions_of(self._brokers(), self._options)
        begins = start_offsets(self._brokers(), self._options, partitions) | self._kept(partitions)
        return to_json(begins, self._brokers().topic_ids)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        return super().latestOffset(self._of_inputs(start), limit)

    def _begins_of_new(self, partitions: Sequence[Partition]) -> Offsets:
        return self._kept(partitions)

    def _was_recreated(self, topic: str, before: str, now: str, what: str) -> None:
        log.warning("topic %s was deleted and created again (id %s, then %s); %s", topic, before, now, what)

    def commit(self, end: Json) -> None:
        super().commit(self._of_inputs(end))

    def _starts_of_new(self, began: Mapping[Partition, int], found: Mapping[Partition, int]) -> Offsets:
        usual = super()._starts_of_new(began, found)
        return usual | self._kept(usual)

    def _kept(self, partitions: Iterable[Partition]) -> Offsets:
        """Where the subscription is, of partitions that the query has not read: there it was made."""
        asked = list(partitions)
        return committed(self._brokers(), self._options.subscription or "", asked) if asked else {}

    def _of_inputs(self, offsets: Json) -> Json:
        """A micro-batch that was planned before the update has more, and is finished."""
        return {topic: parts for topic, parts in offsets.items() if topic in self._options.wanted.topics}


#: As the query gives them to tasks: times are milliseconds, which no time zone changes on the way.
READ = ("key", "value", "topic", "partition", "offset", "ms", "headers")
HEADERS = "array<struct<key: string, value: binary>>"
WRITTEN = f"kind string, topic string, key binary, value binary, ms bigint, headers {HEADERS}"
_ARROW = pa.schema(
    [
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("ms", pa.int64()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


@dataclass(frozen=True, slots=True)
class TaskFunction:
    """A function as it travels to tasks. `names`: the full names of its inputs, by those of Kafka. `access`: whom
    to ask for versions of schemas that come later."""

    function: Function
    schemas: Mapping[str, Sequence[SchemaVersion]]
    names: Mapping[str, str]
    partitioned: tuple[str, ...]
    access: Access

    @property
    def inline(self) -> list[str]:
        """Inputs, by Kafka's names, whose keys lie in the values (KEY_VALUE, INLINE)."""
        return [name for name, topic in self.names.items() if Values(topic, self.schemas.get(topic, ())).inline]

    def run(self, items: Sequence[Item], states: States) -> tuple[list[OutRow], States]:
        """All rows that come of them, and the states that have changed."""
        key = (self.function.id, self.function.version)
        if key not in _LOADED:
            _forget()
            _LOADED[key] = self._load(self.schemas)
        if _LATER.wanted(items, _LOADED[key].values):
            found = {topic: schemas_of_topic(self.access, TopicName.parse(topic)) for topic in self.schemas}
            _forget()
            _LOADED[key] = self._load(found)
        return _LOADED[key].run(items, states)

    def _load(self, schemas: Mapping[str, Sequence[SchemaVersion]]) -> InPlace:
        return InPlace(self.function, from_text(self.function.options), schemas, self.partitioned)

    def item(self, row: Mapping[str, Any]) -> Item:
        headers = [
            (one["key"], None if one["value"] is None else bytes(one["value"])) for one in row["headers"] or ()
        ]
        known = self.names.get(row["topic"])
        return Item(
            str(topic_of(row["topic"])) if known is None else known,  # an input that was dropped meanwhile
            row["partition"],
            row["offset"],
            None if row["key"] is None else bytes(row["key"]),
            None if row["value"] is None else bytes(row["value"]),
            headers,
            row["ms"],
        )


#: One for each process, function and version.
_LOADED: dict[tuple[str, int], InPlace] = {}
_LATER = LaterVersions()


def _forget() -> None:
    for one in _LOADED.values():
        one.close()
    _LOADED.clear()


def mapper(task: TaskFunction) -> Any:
    """For `mapInArrow`."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            rows, _ = task.run([task.item(row) for row in batch.to_pylist()], {})
            if rows:
                yield _batch(rows)

    return run


def _batch(rows: Sequence[OutRow]) -> Any:
    found = [
        {
            "kind": row.kind,
            "topic": row.topic,
            "key": row.key,
            "value": row.value,
            "ms": row.timestamp,
            "headers": [{"key": name, "value": value} for name, value in row.headers],
        }
        for row in rows
    ]
    return pa.RecordBatch.from_pylist(found, schema=_ARROW)


class KeyedFunction(StatefulProcessor):
    """For `transformWithState`: the messages of a key in the order of their offsets, and its state as bytes."""

    def __init__(self, task: TaskFunction) -> None:
        self._task = task
        self._state: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("state", "stored binary")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        items = [self._task.item(row.asDict()) for row in rows]
        items.sort(key=lambda item: (item.topic, item.partition, item.offset))
        whose = bytes(key[0])
        before = bytes(self._state.get()[0]) if self._state.exists() else None
        found, changed = self._task.run(items, {whose: before})
        if whose in changed:
            after = changed[whose]
            if after is None:
                self._state.clear()
            else:
                self._state.update((after,))
        for one in found:
            headers = [Row(key=name, value=value) for name, value in one.headers]
            yield Row(
                kind=one.kind, topic=one.topic, key=one.key, value=one.value, ms=one.timestamp, headers=headers
            )

    def close(self) -> None:
        """Nothing is open."""


#: What a micro-batch counted, in its progress.
COUNTED = "counted"


def task_of(place: Place, function: Function) -> TaskFunction:
    """What tasks have to know, asked of the broker."""
    topics = [*function.inputs, *([] if function.output is None else [function.output])]
    return TaskFunction(
        function,
        {str(topic): place.schemas(topic) for topic in topics},
        {kafka_name(topic): str(topic) for topic in function.inputs},
        tuple(str(topic) for topic in function.inputs if place.partitioned(topic)),
        place.access,
    )


def start(spark: "SparkSession", cluster: WeirCluster, task: TaskFunction, checkpoint: str) -> "StreamingQuery":
    """From where its checkpoint says; a new one where the function shall begin."""
    function, options = task.function, from_text(task.function.options)
    spark.dataSource.register(FunctionSource)
    source = spark.readStream.format(FunctionSource.name()).options(**source_options(cluster, function)).load()
    written = called(source, task, stateful=options.stateful, parallelism=options.parallelism)
    return (
        written.writeStream.queryName(function.id)
        .format("weir")
        .options(**sink_options(cluster, function))
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(processingTime=options.trigger)
        .start()
    )


def source_options(cluster: WeirCluster, function: Function) -> dict[str, str]:
    options = from_text(function.options)
    return {
        **cluster.options,
        "subscribe": ",".join(map(kafka_name, function.inputs)),
        "startingOffsets": options.start,
        "includeHeaders": "true",
        "subscription": function.subscription,
        "maxOffsetsPerTrigger": str(max(options.batch_messages, 1_000) * 100),
    }


def _whose(inline: Sequence[str]) -> "Column":
    """Whose state a message changes: its key, or that which lies in its value, behind its length (-1: none)."""
    from pyspark.sql import functions as f

    own = f.coalesce("key", f.lit(b""))
    length = "cast(conv(hex(substring(value, 1, 4)), 16, 10) as bigint)"
    within = f"CASE WHEN {length} < 2147483648 THEN substring(value, 5, cast({length} as int)) ELSE X'' END"
    lies_within = f.col("topic").isin(*inline) & f.col("value").isNotNull()
    return f.when(lies_within, f.expr(within)).otherwise(own) if inline else own


def _dealt_by(inline: Sequence[str]) -> "Column":
    """Messages of a key go to one task, in their order; those without one anywhere."""
    from pyspark.sql import functions as f

    whose = _whose(inline)
    return f.when(whose == f.lit(b""), f.encode(f.col("offset").cast("string"), "utf-8")).otherwise(whose)


def sink_options(cluster: WeirCluster, function: Function) -> Mapping[str, str]:
    return {**cluster.options, "sinkId": f"fn-{function.id}"}


def called(source: "DataFrame", task: TaskFunction, *, stateful: bool, parallelism: int) -> "DataFrame":
    """The messages that come of those of the source, with a count of each kind."""
    from pyspark.sql import functions as f

    messages = source.withColumn("ms", f.unix_millis("timestamp")).select(*READ)
    if stateful:
        grouped = messages.withColumn("whose", _whose(task.inline)).groupBy("whose")
        rows = grouped.transformWithState(KeyedFunction(task), WRITTEN, "append", "none")
    else:
        spread = messages.repartition(parallelism, _dealt_by(task.inline)) if parallelism > 1 else messages
        rows = spread.mapInArrow(mapper(task), WRITTEN)
    counts = [f.sum(f.when(f.col("kind") == kind, 1).otherwise(0)).alias(kind) for kind in (SENT, FAILED, DEAD)]
    counted: DataFrame = rows.observe(COUNTED, *counts).where(f.col("kind") != FAILED)
    return counted.select("topic", "key", "value", f.timestamp_millis("ms").alias("timestamp"), "headers")
