"""Messages as files of a folder or a bucket by Spark's own writers, exactly once: a range of offsets is a file.

Spark reads a range that is fixed, and writes it into a folder of its own, which readers of files overlook. From
there files go to where the light engine would have written them, under names that say which offsets they
have; so the same law holds: a file is there whole or not at all, and says how far its partition is.

Files of a folder or a bucket by Spark's own readers, each once: many files at a time, by all of Spark's tasks.

What is read together is an epoch. Which files it has is kept before it is read, and that they are done behind it;
the broker notes an epoch in the one decision that commits the messages of its tasks. So whatever dies, the next
runner reads the same files again as the same epoch, and if that was written, nothing more comes of it.

The Spark that connectors with `engine = "spark"` work by: one session for all, and another if its JVM dies.
"""

import csv
import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from weir.client.kafka.cluster import Partition
from weir.client.kafka.fetch import EARLIEST, list_offsets
from weir.client.schemas import TopicSchema
from weir.client.sink_epochs import last_epoch
from weir.client.weir_cluster import Place
from weir.connect.connectors.files import (
    DONE,
    HINT,
    FilesSink,
    FilesSource,
    cells,
    check_names,
    message_of,
    row_of,
)
from weir.connect.stores import StoredFile, path_of_spark
from weir.connect.task import Job, Message
from weir.connect.values import Decoder, Encoder, json_value, latest_schema
from weir.model.diagnosis import install_command
from weir.model.errors import ConnectorError, SparkSetupError, WeirError
from weir.model.topics import TopicName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_STARTING = threading.Lock()
_THROWN = re.compile(r"(?::|Caused by:) [\w.$]+(?:Exception|Error): (.+)")
_CODES = re.compile(r"\s*SQLSTATE: \w+$")


def session() -> "SparkSession":
    """The one that runs, or a new one."""
    try:
        import weir.spark
    except ImportError:
        raise SparkSetupError(
            'engine = "spark" needs Spark', hint=f"install it: {install_command('spark')}"
        ) from None
    with _STARTING:
        _forget_dead()
        spark = weir.spark.session("weir-connect")
        # Spark finds a sink by the session of the calling thread; this makes it be that one.
        spark.createDataFrame([], "nothing int")
        return spark


def _forget_dead() -> None:
    """PySpark keeps a context whose JVM is gone for ever, and would give it to whoever asks."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway
    if gateway is None or _runs(gateway):
        return
    context: Any = SparkContext._active_spark_context
    with suppress(Exception):
        context.stop()
    with suppress(Exception):
        gateway.shutdown()
    forgotten: Any = SparkContext
    forgotten._gateway = forgotten._jvm = forgotten._active_spark_context = None
    SparkSession._instantiatedSession = None


def _runs(gateway: Any) -> bool:
    process = getattr(gateway, "proc", None)
    return process is None or process.poll() is None


def driver_runs() -> bool:
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    return gateway is not None and _runs(gateway)


def cancel(group: str) -> None:
    """End the jobs of a connector that shall end; by another thread than theirs."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    if context is not None and driver_runs():
        with suppress(Exception):
            context.cancelJobGroup(group)


def failed(failure: Exception) -> ConnectorError:
    """What happened, without the stacks of three programs."""
    from weir.spark.sql.stream_query import told

    if isinstance(failure, ConnectorError):
        return failure
    if isinstance(failure, WeirError):
        return ConnectorError(failure.what, hint=failure.hint)
    if not driver_runs():
        return ConnectorError("Spark's driver has ended", hint="another one is started with the next try")
    called = str(failure).startswith("An error occurred while calling")  # which says nothing yet
    return ConnectorError(innermost(failure) if called else told(failure))


def innermost(failure: Exception) -> str:
    """What the last of the errors says by which a Java program explains the one before."""
    thrown = [found for line in str(failure).splitlines() if (found := _THROWN.match(line.strip()))]
    said = thrown[-1][1] if thrown else str(failure).partition("\n")[0]
    return _CODES.sub("", said.partition("] ")[2] if said.startswith("[") else said).strip()


def connection(place: Place) -> Mapping[str, str]:
    """What Spark's source and sink need to come in."""
    from weir.spark.tables.names import WeirCluster

    servers = ",".join(map(str, place.kafka.servers))
    return WeirCluster(place.access, servers, place.kafka.tls is not None).options


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


#: Where the epoch is kept; no file has such a path.
_KEY = "/epoch"
_MOST_FILES, _MOST_BYTES = 1_000, 1 << 30
_FILE = "__weir_file"
#: How Spark says in which file something is wrong, and how its log shows errors of Weir's.
_READING, _OWN = re.compile(r"reading file ((?:file|webhdfs):.*?)\.\s+SQLSTATE"), "weir.model.errors"
_GLOB = re.compile(r"([{}\[\]*?\\])")
_WRITTEN = "key binary, value binary, headers array<struct<key: string, value: binary>>"


def sink_id(job: Job) -> str:
    """By which the broker knows its epochs."""
    return f"connect-{job.id}"


class SparkFilesSource(FilesSource):
    def open(self) -> None:
        super().open()
        session()
        # What tasks of a runner that died left open would hide all that comes behind it.
        from weir.spark.options import parse_sink
        from weir.spark.sink import sweep

        sweep(parse_sink({**connection(self.job.place), "topic": self.name}), sink_id(self.job), ())

    def interrupt(self) -> None:
        cancel(sink_id(self.job))

    def step(self) -> int:
        epoch = self.positions.get(_KEY, {"number": 0, "files": []})
        if not epoch["files"]:
            files = self._chosen()
            if not files:
                return 0
            epoch = {"number": epoch["number"], "files": files}
            self.send([], {_KEY: epoch})
        number, files = epoch["number"], epoch["files"]
        carried = 0
        if last_epoch(self.job.place.access, sink_id(self.job)) < number:
            try:
                carried = self._carry(number, files)
            except Exception as failure:
                raise self._told(failure) from None
        self.send([], {_KEY: {"number": number + 1, "files": []}, **dict.fromkeys(files, DONE)})
        self.status.position = f"{files[-1]}: all records"
        self.status.lag = max(0, self.status.lag - len(files))
        return max(1, carried)

    def _chosen(self) -> list[str]:
        """The next files, in the order of their paths. Of CSV those that begin with the same line: Spark knows
        columns by their place."""
        found: list[str] = []
        size, first = 0, None
        for one in self.waiting()[:_MOST_FILES]:
            if self.job.option("format") == "csv":
                header = self._header(one.path)
                first = first or header
                if header != first:
                    break
            size += one.size
            if found and size > _MOST_BYTES:
                break
            found.append(one.path)
        return found

    def _header(self, path: str) -> list[str]:
        with self.text(path) as file:
            names = next(csv.reader(file, delimiter=self.job.option("delimiter")), [])
        try:
            check_names(names)
        except ValueError as bad:
            raise ConnectorError(f"{path}: {bad}", hint=HINT) from None
        return names

    def _carry(self, number: int, files: Sequence[str]) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        listed = {one.path: one for one in self.store.list()}
        there = [listed[one] for one in files if one in listed]
        if not there:
            return 0
        frame = self._frame(there)
        if frame is None:  # files of CSV without a line
            return 0
        work = _Work(self.schema(), self.topic, self.name, self.job.option("format"), self.key, self.store.root)
        counted = Observation()
        rows = frame.mapInArrow(encoding(work), _WRITTEN).observe(counted, f.count(f.lit(1)).alias("rows"))
        frame.sparkSession.sparkContext.setJobGroup(sink_id(self.job), f"weir connect {self.name}")
        writer = rows.write.format("weir").options(**connection(self.job.place), topic=self.name).mode("append")
        writer.options(sinkId=sink_id(self.job), sinkEpoch=str(number)).save()
        return int(counted.get["rows"])

    def _frame(self, files: Sequence[StoredFile]) -> "DataFrame | None":
        """The records, and the file of each. What a file must not have is an error, never left out."""
        from pyspark.sql import functions as f
        from pyspark.sql import types as t

        spark = session()
        paths = [_GLOB.sub(r"\\\1", one) for one in self.store.for_spark(files)]
        reader, form = spark.read.option("mode", "FAILFAST"), self.job.option("format")
        where = f.col("_metadata.file_path").alias(_FILE)
        if form == "parquet":
            self._declare([one.path for one in files])
            return reader.option("mergeSchema", "true").parquet(*paths).select("*", where)
        if form == "csv":
            names = self._header(files[0].path)
            if not names:
                return None
            columns = t.StructType([t.StructField(one, t.StringType()) for one in names])
            reader = reader.schema(columns).options(
                header=True,
                enforceSchema=False,
                sep=self.job.option("delimiter"),
                escape='"',
                multiLine=True,
                maxCharsPerColumn=-1,
            )
            return reader.csv(paths).select("*", where)
        return reader.text(paths).select("value", where)

    def _declare(self, files: Sequence[str]) -> None:
        import pyarrow.parquet as pq

        from weir.connect.values import columns_of

        found: dict[str, Any] = {}
        for path in files:
            try:
                with self.store.open(path) as file:
                    found = dict(columns_of(pq.read_schema(file))) | found
            except (OSError, ValueError) as bad:
                raise ConnectorError(f"{path} is no Parquet: {bad}", hint=HINT) from None
        self.declare(list(found.items()))

    def _told(self, failure: Exception) -> ConnectorError:
        """With the file that it is about, as the user knows it."""
        found, file = failed(failure), _READING.search(str(failure))
        if file is None or found is failure or _OWN in str(failure):
            return found
        path = path_of_spark(file[1], self.store.root)
        return ConnectorError(f"{path} cannot be read: {innermost(failure)}", hint=HINT)


@dataclass(frozen=True, slots=True)
class _Work:
    """What tasks have to know."""

    schema: TopicSchema | None
    topic: TopicName
    name: str
    form: str
    key: Sequence[str]
    root: str


def encoding(work: _Work) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Records as messages, just as the light engine makes them."""

    def encode(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        encoder = Encoder(work.schema, work.topic)
        header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        kind = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", header)])
        headers = [{"key": name.decode(), "value": value} for name, value in encoder.headers]
        for batch in batches:
            rows = []
            for row in batch.to_pylist():
                file = row.pop(_FILE)
                record = _record(row, work.form)
                if record == b"":
                    continue
                try:
                    one = message_of(record, work.form, work.name, encoder, work.key)
                except (ValueError, ArithmeticError, RecursionError, ConnectorError) as bad:
                    what = bad.what if isinstance(bad, ConnectorError) else str(bad)
                    shown = record if isinstance(record, bytes) else json.dumps(record, default=str).encode()
                    path = path_of_spark(file, work.root)
                    raise ConnectorError(
                        f"{path}: {what}, in {shown[:80].decode(errors='replace')}", hint=HINT
                    ) from None
                rows.append({"key": one.key, "value": one.value, "headers": headers})
            yield pa.RecordBatch.from_pylist(rows, schema=kind)

    return encode


def _record(row: dict[str, Any], form: str) -> Any:
    if form in ("json", "text"):
        return (row["value"] or "").encode()
    return cells(row) if form == "csv" else row
