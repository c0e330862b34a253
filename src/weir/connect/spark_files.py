"""Files by Spark's own readers and writers, as a streaming query: for more than one process can carry.

Each file, and each offset, once: Spark's checkpoint says how far it is, its file sink which files count, and
Weir's sink which micro-batches were written. The checkpoint lies in the folder itself, where readers of files
overlook it.
"""

import json
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from weir.connect.place import kafka_name
from weir.connect.task import Job, Status
from weir.connect.values import latest_schema, register
from weir.model.errors import ConfigError, ConnectorError, SparkSetupError
from weir.model.installation import install_command

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STARTING = threading.Lock()
_SHORTEST_AGE_MS = 500


def _session() -> "SparkSession":
    try:
        import weir.spark
    except ImportError:
        raise SparkSetupError(
            'engine = "spark" needs Spark', hint=f"install it: {install_command('spark')}"
        ) from None
    with _STARTING:
        return weir.spark.session("weir-connect")


class SparkFiles:
    """A source or a sink of files."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.status = Status(idle_s=0.2)
        if job.option("path").startswith("s3://"):
            raise ConfigError("PySpark has no client of S3", hint="leave engine out, or use a folder")
        self._query: Any = None
        self._batch = -1
        self._topic = kafka_name(job.definition.topic)

    @property
    def _checkpoint(self) -> str:
        return f"{self.job.option('path').rstrip('/')}/_weir_connect/{self.job.id}"

    def _place(self) -> dict[str, str]:
        place = self.job.place
        found = {
            "kafka.bootstrap.servers": ",".join(map(str, place.kafka.servers)),
            "adminUrl": place.access.url,
        }
        if place.access.token is not None:
            found["token"] = place.access.token
        if place.kafka.tls is not None:
            found["kafka.security.protocol"] = "SSL" if place.access.token is None else "SASL_SSL"
            if place.access.ca is not None:
                found["kafka.ssl.ca.location"] = place.access.ca
        return found

    def open(self) -> None:
        spark = _session()
        # Spark finds a sink by the session of the calling thread; this makes it be that one.
        spark.createDataFrame([], "nothing int")
        self._query = self._read(spark) if self.job.definition.side == "source" else self._write(spark)

    def close(self) -> None:
        if self._query is not None:
            with suppress(Exception):
                self._query.stop()
            self._query = None

    def step(self) -> int:
        if self._query is None:  # there was no file to learn the columns of
            self.open()
            return 0
        failure = self._query.exception()
        if failure is not None or not self._query.isActive:
            raise ConnectorError(f"the query ended: {str(failure).splitlines()[0] if failure else 'by itself'}")
        carried = 0
        for progress in self._query.recentProgress:
            if progress.batchId > self._batch:
                self._batch = progress.batchId
                carried += progress.numInputRows
                self.status.position = f"batch {progress.batchId}"
        return carried

    # --- files to a topic ---

    def _read(self, spark: "SparkSession") -> Any:
        from pyspark.errors import AnalysisException

        from weir.spark.sql.output import messages

        path, form = self.job.option("path"), self.job.option("format")
        options = {"recursiveFileLookup": "true", "pathGlobFilter": self.job.option("pattern")}
        if form == "csv":
            options |= {"header": "true", "sep": self.job.option("delimiter"), "inferSchema": "true"}
        try:
            columns = spark.read.format(form).options(**options).load(path).schema
        except AnalysisException:  # nothing is there yet
            return None
        if not columns.fields:
            return None
        frame: DataFrame = spark.readStream.format(form).schema(columns).options(**options).load(path)
        key = self.job.option("key")
        if key:
            from pyspark.sql import functions as f

            said = f.col(key[0]).cast("string") if len(key) == 1 else f.to_json(f.struct(*key))
            frame = frame.withColumn("__key", said)
        found = messages(frame, self.job.definition.topic.local)
        access = self.job.place.access
        if found.schema is not None and not latest_schema(access, self.job.definition.topic):
            register(access, self.job.definition.topic, "json", json.loads(found.schema))
        writer = found.frame.writeStream.format("weir").options(**self._place(), topic=self._topic)
        return self._started(writer, self.job.option("poll"))

    # --- a topic to files ---

    def _write(self, spark: "SparkSession") -> Any:
        options = {**self._place(), "startingOffsets": self.job.option("start")}
        typed = bool(latest_schema(self.job.place.access, self.job.definition.topic))
        if typed:
            options["valueFormat"] = "schema"
        frame = spark.readStream.format("weir").options(**options).load(self._topic)
        about = ["key AS __key", "partition AS __partition", "offset AS __offset", "timestamp AS __timestamp"]
        about = about if self.job.option("columns") == "all" else []
        value = frame.schema["value"].dataType
        chosen = ["value.*"] if value.typeName() == "struct" else ["CAST(value AS STRING) AS value"]
        rows = frame.selectExpr(*chosen, *about)
        path = f"{self.job.option('path').rstrip('/')}/{self._topic}"
        writer = rows.writeStream.format(self.job.option("format")).option("path", path)
        if self.job.option("format") == "csv":
            writer = writer.option("header", "true")
        return self._started(writer, max(_SHORTEST_AGE_MS, self.job.option("max_age")))

    def _started(self, writer: Any, every_ms: int) -> Any:
        writer = writer.option("checkpointLocation", self._checkpoint).trigger(
            processingTime=f"{every_ms} milliseconds"
        )
        return writer.start()
