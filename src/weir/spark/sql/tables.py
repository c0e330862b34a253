"""Topics as tables and streams: typed columns by the registry, and what else a message has as `__...`."""

import logging
from collections.abc import Mapping
from difflib import get_close_matches
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructType

from weir.client.kafka.cluster import Cluster
from weir.client.registry import schemas_of, topic_of
from weir.model.errors import ConfigError, SchemaNotFoundError, SqlError, TopicNotFoundError
from weir.model.topics import TopicName
from weir.spark.columns import schema_of
from weir.spark.options import connection
from weir.spark.sql.place import Place, kafka_name, table_name, topic_named
from weir.spark.sql.queries import Query, quoted
from weir.spark.typed import value_schema

log = logging.getLogger(__name__)

#: Of every message; in this order.
_ABOUT = (
    "cast(key AS string) AS __key",
    "offset AS __offset",
    "partition AS __partition",
    "topic AS __topic",
    "timestamp AS __timestamp",
    "key AS __raw_key",
)
_UNTYPED = ("cast(value AS string) AS value", *_ABOUT, "value AS __raw_value")


class Tables:
    """Makes queries of statements."""

    def __init__(self, spark: SparkSession, place: Place) -> None:
        self._spark = spark
        self._place = place

    def names(self) -> list[str]:
        """Every topic that may be seen, by its name as a table."""
        with Cluster(connection(self._place.options)) as cluster:
            return [table_name(topic_of(name)) for name in cluster.topics()]

    def topics(self, query: Query) -> dict[tuple[str, ...], TopicName]:
        """The topics that a query reads; what is a view of this session is none."""
        return {
            parts: topic_named(parts)
            for parts in query.names
            if len(parts) > 1 or not self._spark.catalog.tableExists(quoted(parts[0]))
        }

    def frame(self, query: Query, *, streaming: bool, options: Mapping[str, str] | None = None) -> DataFrame:
        """The query on topics as they are, or as streams. `options` are the source's."""
        views: dict[tuple[str, ...], str] = {}
        try:
            for parts, topic in self.topics(query).items():
                view = f"weir_{uuid4().hex}"  # a session may have several of these
                frame = self.table(topic, streaming=streaming, headers=query.headers, options=options)
                frame.createOrReplaceTempView(view)
                views[parts] = view
            return self._spark.sql(query.reading(views))
        finally:
            for view in views.values():
                self._spark.catalog.dropTempView(view)

    def table(
        self,
        topic: TopicName,
        *,
        streaming: bool = False,
        headers: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """One topic; SqlError if there is none."""
        name = kafka_name(topic)
        self._check_exists(topic, name)
        typed = self._value_type(topic)
        given = {**self._place.options, **(options or {}), "includeHeaders": str(headers).lower()}
        if typed is not None:
            given["valueFormat"] = "schema"
        # The columns are known here; a worker that is asked for them has to be started first.
        columns = schema_of(headers=headers, value=typed)
        reader = self._spark.readStream if streaming else self._spark.read
        frame = reader.format("weir").schema(columns).options(**given).load(name)
        also = ("headers AS __headers",) if headers else ()
        if typed is None:
            return frame.selectExpr(*_UNTYPED, *also)
        return frame.selectExpr("value.*" if isinstance(typed, StructType) else "value", *_ABOUT, *also)

    def _check_exists(self, topic: TopicName, name: str) -> None:
        with Cluster(connection(self._place.options)) as cluster:
            try:
                cluster.partitions([name])
                return
            except TopicNotFoundError:
                near = get_close_matches(name, cluster.topics(), 1)
        hint = f"did you mean {table_name(topic_of(near[0]))}?" if near else "SHOW TABLES lists what there is"
        raise SqlError(f"there is no topic {table_name(topic)}", hint=hint)

    def _value_type(self, topic: TopicName) -> DataType | None:
        """What the registry's schema makes of the value; None if there is none, or none that can be columns."""
        access = self._place.access
        try:
            versions = schemas_of(topic, access.url, token=access.token, ca=access.ca)
            return value_schema(kafka_name(topic), list(versions), permissive=False).type
        except SchemaNotFoundError:
            return None
        except ConfigError as unfit:
            log.warning("the value of %s is read as text: %s", table_name(topic), unfit.what)
            return None
