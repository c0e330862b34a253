"""Messages as files of a folder or a bucket by Spark's own writers, exactly once: a range of offsets is a file.

Spark reads a range that is fixed, and writes it into a folder of its own, which readers of files overlook. From
there files go to where the light engine would have written them, under names that say which offsets they
have; so the same law holds: a file is there whole or not at all, and says how far its partition is.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from weir.client.kafka.cluster import Partition
from weir.client.kafka.offsets import EARLIEST, list_offsets
from weir.client.registry import TopicSchema
from weir.connect.sinks.files import FilesSink, row_of
from weir.connect.spark import cancel, connection, failed, session
from weir.connect.task import Job, Message
from weir.connect.values import Decoder, json_value, latest_schema
from weir.model.errors import ConnectorError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Below the sink's path; names that begin so are overlooked.
_STAGING = "_weir_connect"
_INDEX = "__weir_partition"


@dataclass(frozen=True, slots=True)
class _Range:
    first: int
    next_offset: int


class SparkFilesSink(FilesSink):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        #: Since when something waits in a partition.
        self._since_s: dict[Partition, float] = {}

    @property
    def _staging(self) -> str:
        """Spark writes folders alone: what goes to a bucket is uploaded from one of this machine's."""
        above = self.store.root if self.store.local else tempfile.gettempdir()
        return f"{above}/{_STAGING}/{self.job.id}"

    def open(self) -> None:
        session()
        shutil.rmtree(self._staging, ignore_errors=True)  # of one that died
        self._since_s.clear()
        super().open()

    def interrupt(self) -> None:
        cancel(self.job.id)

    def step(self) -> int:
        self.inlet.look()
        self.status.lag = self.inlet.lag()
        due = self._due_ranges()
        carried = 0
        for topic in sorted({partition.topic for partition in due}):
            mine = {partition: due[partition] for partition in due if partition.topic == topic}
            try:
                carried += self._write_ranges(topic, mine)
            except Exception as failure:
                raise failed(failure) from None
        return carried

    def _due_ranges(self) -> dict[Partition, _Range]:
        found: dict[Partition, _Range] = {}
        now_s, most = time.monotonic(), self.job.option("max_records")
        for partition, at in self.inlet.positions.items():
            end = self.inlet.ends.get(partition, at)
            if end <= at:
                self._since_s.pop(partition, None)
                continue
            since_s = self._since_s.setdefault(partition, now_s)
            if end - at >= most or (now_s - since_s) * 1000 >= self.job.option("max_age"):
                found[partition] = _Range(at, min(end, at + most))
        if found:  # what retention has taken is not there to be carried
            begins = list_offsets(self.inlet.cluster, dict.fromkeys(found, EARLIEST))
            for partition, begin in begins.items():
                one = found[partition]
                found[partition] = _Range(max(one.first, begin), max(one.next_offset, begin))
        return found

    def _write_ranges(self, topic: str, ranges: Mapping[Partition, _Range]) -> int:
        folder = f"{self._staging}/{uuid4().hex}"
        filled = {partition: one for partition, one in ranges.items() if one.next_offset > one.first}
        if filled:
            self._write_staged(topic, filled, folder)
        carried = 0
        for partition, one in ranges.items():
            carried += one.next_offset - one.first
            self.inlet.check_alone(partition)
            staged = f"{folder}/{_INDEX}={partition.index}"
            parts = [name for name in _listed(staged) if not name.startswith((".", "_"))]
            if len(parts) > 1:
                raise ConnectorError(f"Spark wrote {len(parts)} files for {partition}")
            if parts:
                path = self.path_of(partition, one.first, one.next_offset)
                self.store.take(f"{staged}/{parts[0]}", path)
            self.inlet.positions[partition] = one.next_offset
            self.inlet.commit({partition: one.next_offset})
            self._since_s.pop(partition, None)
            self.status.position = f"{partition} at {one.next_offset}"
        shutil.rmtree(folder, ignore_errors=True)
        self.status.lag = self.inlet.lag()
        return carried

    def _write_staged(self, topic: str, ranges: Mapping[Partition, _Range], folder: str) -> None:
        spark = session()
        spark.sparkContext.setJobGroup(self.job.id, f"weir connect {topic}")
        form = self.job.option("format")
        versions = latest_schema(self.job.place.access, self._names[topic])
        rows = self._lines(topic, ranges, versions) if form == "json" else self._columns(topic, ranges, versions)
        rows = rows.repartition(len(ranges), _INDEX).sortWithinPartitions(_INDEX, "__weir_offset")
        writer = rows.drop("__weir_offset").write.partitionBy(_INDEX)
        if form == "json":
            writer.text(folder)
        elif form == "csv":
            writer.options(header=True, escape='"').csv(folder)
        else:
            writer.option("compression", "zstd").parquet(folder)

    def _read(self, topic: str, ranges: Mapping[Partition, _Range], **more: str) -> "DataFrame":
        def offsets(which: Callable[[_Range], int]) -> str:
            return json.dumps({topic: {str(one.index): which(span) for one, span in ranges.items()}})

        options = {
            **connection(self.job.place),
            "assign": json.dumps({topic: [one.index for one in ranges]}),
            "startingOffsets": offsets(lambda one: one.first),
            "endingOffsets": offsets(lambda one: one.next_offset),
            "includeHeaders": "true",
            "lake": "false",
            **more,
        }
        return session().read.format("weir").options(**options).load()

    def _lines(
        self, topic: str, ranges: Mapping[Partition, _Range], versions: Sequence[TopicSchema]
    ) -> "DataFrame":
        """As the light engine writes them."""
        raw = self._read(topic, ranges).selectExpr(
            "partition", "offset", "key", "value", "unix_millis(timestamp) AS ms", "headers"
        )
        work = lines(tuple(versions), topic, str(self._names[topic]), self.job.option("columns"))
        return raw.mapInArrow(work, f"{_INDEX} int, __weir_offset long, value string")

    def _columns(
        self, topic: str, ranges: Mapping[Partition, _Range], versions: Sequence[TopicSchema]
    ) -> "DataFrame":
        from pyspark.sql import functions as f
        from pyspark.sql import types as t

        if versions:
            frame = self._read(topic, ranges, valueFormat="schema", mode="FAILFAST")
        else:
            frame = _guessed(self._read(topic, ranges))
        frame = frame.withColumns({_INDEX: f.col("partition"), "__weir_offset": f.col("offset")})
        chosen = ["value.*"] if isinstance(frame.schema["value"].dataType, t.StructType) else ["value"]
        key = "CAST(key AS STRING) AS __key"
        if self.job.option("columns") == "all":
            chosen += [
                key,
                "partition AS __partition",
                "offset AS __offset",
                "unix_millis(timestamp) AS __timestamp",
                "transform(headers, h -> struct(h.key, CAST(h.value AS STRING) AS value)) AS __headers",
            ]
        elif frame.where("value IS NULL").limit(1).count():  # a deletion says at least of what
            chosen.append(f"CASE WHEN value IS NULL THEN {key.removesuffix(' AS __key')} END AS __key")
        rows = frame.selectExpr(_INDEX, "__weir_offset", *chosen)
        return _flat(rows) if self.job.option("format") == "csv" else rows


def _guessed(raw: "DataFrame") -> "DataFrame":
    """Values without a schema: objects of JSON are rows with what all of them have, others texts."""
    from pyspark.sql import functions as f

    text = raw.withColumn("value", f.col("value").cast("string"))
    parsed = f.try_parse_json("value")
    shapes = text.select(parsed.alias("v")).where("schema_of_variant(v) LIKE 'OBJECT<%'")
    found = shapes.agg(f.schema_of_variant_agg("v")).collect()[0][0]
    if not found or not found.startswith("OBJECT<"):
        return text
    schema = f"STRUCT<{found.removeprefix('OBJECT<')}".replace("OBJECT<", "STRUCT<").replace("VOID", "STRING")
    odd = text.where("value IS NOT NULL").where(
        f.coalesce(f.schema_of_variant(parsed), f.lit("")).startswith("OBJECT<") == f.lit(False)
    )
    if odd.limit(1).count():
        return text  # a mixture: whole values, so that nothing is lost
    return text.withColumn("value", f.from_json("value", schema, {"mode": "FAILFAST"}))


def _flat(rows: "DataFrame") -> "DataFrame":
    """What CSV has no way to write becomes JSON, as the light engine does it."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    nested = (t.StructType, t.ArrayType, t.MapType)
    return rows.select(
        *(
            f.to_json(field.name).alias(field.name)
            if isinstance(field.dataType, nested)
            else f.base64(field.name).alias(field.name)
            if isinstance(field.dataType, t.BinaryType)
            else f.col(f"`{field.name}`")
            for field in rows.schema
        )
    )


def lines(
    versions: Sequence[TopicSchema], topic: str, shown: str, columns: str
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What tasks do: messages as lines of JSON."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        decoder = Decoder(versions, shown)
        kind = pa.schema([(_INDEX, pa.int32()), ("__weir_offset", pa.int64()), ("value", pa.string())])
        for batch in batches:
            found = []
            for row in batch.to_pylist():
                headers = tuple((one["key"].encode(), one["value"]) for one in row["headers"] or ())
                message = Message(topic, row["key"], row["value"], row["ms"], headers, row["partition"])
                try:
                    made = row_of(decoder, row["offset"], message, columns)
                except ConnectorError as wrong:
                    place = Partition(topic, row["partition"])
                    raise ConnectorError(f"{place} at offset {row['offset']}: {wrong.what}") from None
                text = json.dumps(made, default=json_value, ensure_ascii=False)
                found.append({_INDEX: row["partition"], "__weir_offset": row["offset"], "value": text})
            yield pa.RecordBatch.from_pylist(found, schema=kind)

    return work


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
