"""Topics as tables and streams: typed columns by the registry, and what else a message has as `__...`."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from json import dumps
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr, from_json
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from weir.client.kafka.cluster import Cluster
from weir.client.kafka.fetch import bounds
from weir.client.schemas import kafka_name, schemas_by, topic_of
from weir.model.definitions import is_selection, table_name
from weir.model.errors import ConfigError, SchemaNotFoundError, SqlError, TopicNotFoundError
from weir.model.topics import TopicName
from weir.spark.columns import RAW_KEY, RAW_VALUE, schema_of
from weir.spark.lake.spark_reader import History, find_history
from weir.spark.options import connection, to_json
from weir.spark.sql.plan_safety import check_query_text
from weir.spark.tables.json_fields import SAMPLE, infer_fields
from weir.spark.tables.names import WeirCluster, topic_named
from weir.spark.tables.query import FAILFAST, KEY, PERMISSIVE, TECHNICAL, TIME, Distinct, Query, quoted
from weir.spark.values.typed import ValueSchema, value_schema

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
#: The same by their names, and where they come from.
_NAMES = {
    "__key": "key",
    "__offset": "offset",
    "__partition": "partition",
    "__topic": "topic",
    "__timestamp": "timestamp",
    "__raw_key": "key",
    "__headers": "headers",
}
_UNTYPED = ("cast(value AS string) AS value", *_ABOUT, "value AS __raw_value")
#: Where the text of a value is that is not as the schema says; and its bytes, on the way.
CORRUPT_RECORD, _CORRUPT = "_corrupt_record", "__weir_corrupt"
_HEADERS_TYPE = "array<struct<key:string,value:binary>>"
#: Key and value as they were sent, where they are asked for.
SENT_KEY, SENT_VALUE = "__sent_key", "__sent_value"
_INCLUDE = "includeHeaders"
#: Where Spark makes tables that a name of one word finds.
_SPARKS_OWN = ("default", "spark_catalog")
#: Where fields of JSON values are, on the way; and of how many partitions values are looked at for them.
_JSON, _SAMPLED_PARTITIONS = "__weir_json", 16
#: How Spark marks a column that has a watermark.
_WATERMARK = "spark.watermarkDelayMs"


class Tables:
    """Makes queries of statements. Spark is asked for when it is needed."""

    def __init__(self, spark: Callable[[], SparkSession], place: WeirCluster) -> None:
        self._spark = spark
        self._place = place

    # --- which there are ----------------------------------------------------------------------------------------

    def names(self) -> list[TopicName]:
        """Every topic that may be seen."""
        return [name for name in map(topic_of, self._all()) if not is_selection(name)]

    def _all(self) -> Sequence[str]:
        with Cluster(connection(self._place.options)) as cluster:
            return list(cluster.topics())

    def columns(self, topic: TopicName) -> list[StructField]:
        """What the table of a topic has; without Spark."""
        schema = self.value_schema(topic)
        typed, key = None if schema is None else schema.type, _key_type(schema)
        raw = schema_of(headers=True)
        about = [StructField(name, raw[column].dataType) for name, column in _NAMES.items()]
        about[0] = StructField("__key", key or StringType())
        if key is not None and not isinstance(key, StringType):
            about = [one for one in about if one.name != "__raw_key"]
        if typed is None:
            return [StructField("value", StringType()), *about, StructField("__raw_value", BinaryType())]
        return [*(typed if isinstance(typed, StructType) else [StructField("value", typed)]), *about]

    def topics(self, query: Query) -> dict[tuple[str, ...], TopicName]:
        """The topics that a query reads; what is a table or view of Spark's is none."""
        return {parts: topic_named(parts) for parts in query.names if not self.is_sparks(parts)}

    def check_syntax(self, text: str) -> None:
        """Whether Spark understands a statement; it says so as it does when it runs one."""
        self._spark()._jsparkSession.sessionState().sqlParser().parsePlan(text)

    def is_sparks(self, parts: tuple[str, ...]) -> bool:
        return len(parts) == 1 and self._spark().catalog.tableExists(quoted(parts[0]))

    def check_free(self, parts: tuple[str, ...]) -> None:
        """SqlError if a table of Spark's own would hide a topic: it would be read in the topic's place by all."""
        here = parts and all(one.lower() in _SPARKS_OWN for one in parts[:-1])
        if here and kafka_name(topic_named(parts[-1:])) in self._all():
            raise SqlError(
                f"there is a topic {table_name(topic_named(parts[-1:]))}, and every topic is a table already",
                hint="INSERT INTO adds messages to it; give a table of Spark's another name",
            )

    # --- queries ------------------------------------------------------------------------------------------------

    def frame(
        self,
        query: Query,
        *,
        streaming: bool,
        options: Mapping[str, str] | None = None,
        infer: bool | None = None,
    ) -> DataFrame:
        """The query on topics as they are, or as streams. `options` are the source's. `infer`: a column that no
        topic has may be a field of JSON values without a schema; by default not of streams, whose columns must be
        the same when they are started again."""
        infer = not streaming if infer is None else infer
        if query.distinct is not None:
            return self._unique(query.distinct, safe=query.safe, streaming=streaming, options=options, infer=infer)
        try:
            with self.reading(query, streaming=streaming, options=options) as text:
                return self._planned(query, text)
        except AnalysisException as unknown:
            if not is_unknown_column(unknown):
                raise
            topics = set(self.topics(query).values())
            json = {topic: found for topic in topics if (found := self.json_fields(topic)) is not None}
            if not json:
                raise
            if not infer:
                names = ", ".join(table_name(topic) for topic in sorted(json, key=str))
                raise SqlError(
                    f"{_first_line(unknown)}; values of {names} are JSON without a schema, which streams need",
                    hint="upload it (weir schemas upload), or use get_json_object(value, '$.field')",
                ) from unknown
        with self.reading(query, streaming=streaming, options=options, json=json) as text:
            return self._planned(query, text)

    def _planned(self, query: Query, text: str) -> DataFrame:
        """Spark executes commands here already; so of a query from others, what it parses is checked first."""
        if query.safe:
            check_query_text(self._spark(), text)
        return self._spark().sql(text)

    @contextmanager
    def reading(
        self,
        query: Query,
        *,
        streaming: bool = False,
        options: Mapping[str, str] | None = None,
        json: Mapping[TopicName, StructType] | None = None,
    ) -> Iterator[str]:
        """The query's text, to be run while this is open: it reads views of topics, which end then. `json`: fields
        of topics without a schema."""
        views: list[str] = []

        def view(frame: DataFrame) -> str:
            views.append(f"weir_{uuid4().hex}")  # a session may have several of these
            frame.createOrReplaceTempView(views[-1])
            return quoted(views[-1])

        try:
            topics = self.topics(query)
            for one in query.distincts:
                self._check_reads(one, query)
            parts = {
                one: view(self._unique(one, safe=query.safe, streaming=streaming, options=options))
                for one in query.distincts
            }
            tables = {
                name: view(
                    self.table(
                        topic,
                        streaming=streaming,
                        headers=query.headers,
                        options=options,
                        mode=query.options[name].get("mode"),
                        json=(json or {}).get(topic),
                    )
                )
                for name, topic in topics.items()
            }
            yield query.reading(tables, parts)
        finally:
            for name in views:
                self._spark().catalog.dropTempView(name)

    def _check_reads(self, part: Distinct, query: Query) -> None:
        """What stands before a query, in WITH, is not known within it once it is cut out."""
        own = [name for name in Query.of(part.text()).names if name not in query.names]
        if own:
            raise SqlError(
                f"SELECT DISTINCT within another query reads topics, and {'.'.join(own[0])} is none",
                hint="make it a view: CREATE VIEW x AS ...",
            )

    def _unique(
        self,
        part: Distinct,
        *,
        safe: bool,
        streaming: bool,
        options: Mapping[str, str] | None = None,
        infer: bool | None = None,
    ) -> DataFrame:
        """Rows without duplicates among all that are read; with a watermark, for as long as its delay."""
        query = Query.of(part.text(), safe=safe)
        frame = self.frame(query, streaming=streaming, options=options, infer=infer)
        columns = list(frame.columns)
        seen = [columns[at] for at in query.visible(columns)]
        keys = [name for name in columns if name.startswith(KEY)] or seen
        if streaming and query.watermarks:
            if not _marked(frame) and part.time is not None:
                time = Query.of(part.text(time=True), safe=safe)
                frame = self.frame(time, streaming=True, options=options, infer=infer)
            if not _marked(frame):
                raise SqlError(
                    "SELECT DISTINCT does not have the time of its watermark", hint="add its column to the SELECT"
                )
            frame = frame.dropDuplicatesWithinWatermark(keys)
        else:
            frame = frame.dropDuplicates(keys)
        helpers = [name for name in frame.columns if name.startswith(KEY) or name == TIME]
        return frame.drop(*helpers) if helpers else frame

    # --- one topic ----------------------------------------------------------------------------------------------

    def table(
        self,
        topic: TopicName,
        *,
        streaming: bool = False,
        headers: bool = False,
        options: Mapping[str, str] | None = None,
        mode: str | None = None,
        raw: bool = False,
        schema_of_topic: TopicName | None = None,
        raw_keys: bool = False,
        json: StructType | None = None,
    ) -> DataFrame:
        """One topic; SqlError if there is none. `mode`: what becomes of values that are not as the schema says, if
        `options` do not say it. `raw`: with key and value as they came. `schema_of_topic`: whose schema the values
        have, if it is not the topic's own. `raw_keys`: as bytes, whatever a KEY_VALUE schema says. `json`: fields
        of the values, if they are JSON without a schema; `value` stays their text."""
        name = kafka_name(topic)
        self.check_exists(topic)
        headers = headers or (options or {}).get(_INCLUDE) == "true"
        schema = self.value_schema(schema_of_topic or topic)
        typed = None if schema is None else schema.type
        key = None if raw or raw_keys else _key_type(schema)
        given = {**self._place.options, **(options or {}), _INCLUDE: str(headers).lower()}
        if raw:
            given["includeRaw"] = "true"
        if schema_of_topic is not None:
            given["schemaTopic"] = kafka_name(schema_of_topic)
        mode = mode or given.get("mode", FAILFAST)
        given.pop("mode", None)
        corrupt = None if typed is None or mode == FAILFAST else _CORRUPT
        if typed is not None:
            given["valueFormat"] = "schema"
        if corrupt is not None:
            given |= {"mode": PERMISSIVE, "columnNameOfCorruptRecord": corrupt}
        # The columns are known here; a worker that is asked for them has to be started first.
        columns = schema_of(headers=headers, value=typed, key=key, corrupt=corrupt, raw=raw)
        if streaming:
            frame = self._stream(name, columns, given)
        else:
            frame = self._stored(topic, columns, given, self._history(topic, columns, given, corrupt))
        also = ("headers AS __headers",) if headers else ()
        if raw:
            also = (*also, f"{RAW_KEY} AS {SENT_KEY}", f"{RAW_VALUE} AS {SENT_VALUE}")
        if mode == PERMISSIVE:
            wrong = corrupt or "CAST(NULL AS binary)"
            also = (f"CAST({wrong} AS string) AS {CORRUPT_RECORD}", f"{wrong} AS __raw_corrupt", *also)
        elif corrupt is not None:
            frame = frame.where(f"{corrupt} IS NULL")
        if typed is None and json is not None:
            parsed = from_json(col("value").cast("string"), json).alias(_JSON)
            plain = frame.select(parsed, *map(expr, (*_UNTYPED, *also)))
            return plain.select(f"{_JSON}.*", *(quoted(name) for name in plain.columns if name != _JSON))
        if typed is None:
            return frame.selectExpr(*_UNTYPED, *also)
        about = _ABOUT
        if key is not None:
            raw_key = ("CAST(key AS binary) AS __raw_key",) if isinstance(key, StringType) else ()
            about = ("key AS __key", *_ABOUT[1:-1], *raw_key)
        return frame.selectExpr("value.*" if isinstance(typed, StructType) else "value", *about, *also)

    def _stream(self, name: str, columns: StructType, given: Mapping[str, str]) -> DataFrame:
        return self._spark().readStream.format("weir").schema(columns).options(**given).load(name)

    def _history(
        self, topic: TopicName, columns: StructType, given: Mapping[str, str], corrupt: str | None
    ) -> History | None:
        """What the lake has, if it has the topic, and nothing says where to begin or end."""
        if any(option.startswith(("starting", "ending")) for option in given):
            return None
        with Cluster(connection(self._place.options)) as cluster:
            return find_history(self._spark(), self._place, cluster, topic, columns, corrupt=corrupt)

    def _stored(
        self, topic: TopicName, columns: StructType, given: Mapping[str, str], history: History | None
    ) -> DataFrame:
        """What there is: what the lake has, and what the brokers have from there on."""
        if history is not None and history.offsets:
            given = {**given, "seam": history.seam(topic)}
        rest = self._spark().read.format("weir").schema(columns).options(**given).load(kafka_name(topic))
        return rest if history is None or history.frame is None else history.frame.unionByName(rest)

    def dead_letters(self, topic: TopicName, options: Mapping[str, str], *, streaming: bool = True) -> DataFrame:
        """A topic's messages whose values are not as the schema says, as they are; headers more say where from."""
        frame = self.table(
            topic, streaming=streaming, headers=True, options={**options, "mode": PERMISSIVE}, raw_keys=True
        )
        about = (("topic", "__topic"), ("partition", "__partition"), ("offset", "__offset"))
        told = ", ".join(
            f"named_struct('key', 'weir-dead-letter-{name}', 'value', CAST(CAST({column} AS string) AS binary))"
            for name, column in about
        )
        headers = f"concat(coalesce(__headers, CAST(array() AS {_HEADERS_TYPE})), array({told})) AS headers"
        wrong = frame.where("__raw_corrupt IS NOT NULL")
        return wrong.selectExpr("__raw_corrupt AS value", "__raw_key AS key", headers)

    def check_exists(self, topic: TopicName) -> None:
        """SqlError names the nearest one, if there is no such topic."""
        name = kafka_name(topic)
        with Cluster(connection(self._place.options)) as cluster:
            try:
                cluster.partitions([name])
                return
            except TopicNotFoundError:
                near = get_close_matches(name, cluster.topics(), 1)
        hint = f"did you mean {table_name(topic_of(near[0]))}?" if near else "SHOW TABLES lists what there is"
        raise SqlError(f"there is no topic {table_name(topic)}", hint=hint)

    def json_fields(self, topic: TopicName) -> StructType | None:
        """The fields of values without a schema, by the first and the last messages of each partition; None if
        they have one, or are no JSON objects."""
        if self.value_schema(topic) is not None:
            return None
        name = kafka_name(topic)
        with Cluster(connection(self._place.options)) as cluster:
            oldest, newest = bounds(cluster, cluster.partitions([name])[:_SAMPLED_PARTITIONS], committed=True)
        first = {part: min(newest[part], start + SAMPLE) for part, start in oldest.items()}
        last = {part: max(first[part], end - SAMPLE) for part, end in newest.items()}
        given = {**self._place.options, "lake": "false", "failOnDataLoss": "false"}
        values: list[bytes | None] = []
        for begin, end in ((oldest, first), (last, newest)):
            if any(begin[part] < end[part] for part in begin):
                assign = {name: [part.index for part in begin]}
                ends = {"startingOffsets": dumps(to_json(begin)), "endingOffsets": dumps(to_json(end))}
                read = self._spark().read.format("weir").options(**given, **ends, assign=dumps(assign)).load()
                values += [
                    None if row.value is None else bytes(row.value) for row in read.select("value").collect()
                ]
        reserved = [one.split(" AS ")[-1].strip("`").lower() for one in (*_UNTYPED, "headers")]
        return infer_fields(values, [*reserved, *TECHNICAL, CORRUPT_RECORD])

    def value_type(self, topic: TopicName) -> DataType | None:
        found = self.value_schema(topic)
        return None if found is None else found.type

    def value_schema(self, topic: TopicName) -> ValueSchema | None:
        """What the registry has of the value; None if that is nothing, or nothing that can be columns."""
        access = self._place.access
        try:
            versions = schemas_by(access, topic)
            return value_schema(kafka_name(topic), list(versions), permissive=False)
        except SchemaNotFoundError:
            return None
        except ConfigError as unfit:
            log.warning("the value of %s is read as text: %s", table_name(topic), unfit.what)
            return None


def as_sent(query: Query) -> dict[str, str]:
    """Options for a query whose rows become messages: with `*` go their headers, too."""
    return {} if query.star is None else {_INCLUDE: "true"}


def _key_type(schema: ValueSchema | None) -> DataType | None:
    """What a KEY_VALUE schema says of keys, if that is more than bytes."""
    found = None if schema is None else schema.key_type
    return None if isinstance(found, BinaryType) else found


def is_unknown_column(failure: AnalysisException) -> bool:
    return (failure.getCondition() or "").startswith("UNRESOLVED_COLUMN")


def _first_line(failure: AnalysisException) -> str:
    return str(failure).split("\n")[0]


def _marked(frame: DataFrame) -> bool:
    """Whether a column of it has a watermark."""
    return any(_WATERMARK in (column.metadata or {}) for column in frame.schema)
