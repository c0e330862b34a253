"""Files of a folder or a bucket by Spark's own readers, each once: many files at a time, by all of Spark's tasks.

What is read together is an epoch. Which files it has is kept before it is read, and that they are done behind it;
the broker notes an epoch in the one decision that commits the messages of its tasks. So whatever dies, the next
runner reads the same files again as the same epoch, and if that was written, nothing more comes of it.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.client.registry import TopicSchema
from weir.client.sinks import last_epoch
from weir.connect.sources.files import DONE, HINT, FilesSource, cells, check_names, message_of
from weir.connect.spark import cancel, connection, failed, innermost, session
from weir.connect.stores import StoredFile, path_of_spark
from weir.connect.task import Job
from weir.connect.values import Encoder
from weir.model.errors import ConnectorError
from weir.model.topics import TopicName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
        from weir.spark.sink.options import parse_sink
        from weir.spark.sink.sink import sweep

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

        from weir.connect.arrow import columns_of

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
