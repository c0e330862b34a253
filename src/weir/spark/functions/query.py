"""A function as a streaming query: inputs, the tasks that call it, and what they give, each micro-batch once."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weir.functions.in_place import DEAD, FAILED, SENT
from weir.functions.options import from_text
from weir.functions.place import Place, kafka_name
from weir.model.functions import Function
from weir.spark.functions.source import FunctionSource
from weir.spark.functions.tasks import READ, WRITTEN, KeyedFunction, TaskFunction, mapper
from weir.spark.sql.cluster import WeirCluster

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

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
