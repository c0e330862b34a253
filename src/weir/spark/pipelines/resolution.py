"""The graph with columns and types: each flow's frame is looked at, in an order in which what it reads is known.

Nothing is read and nothing written; Spark analyses the frames, and the registry is asked what topics hold.

Whether columns go with a schema of the registry, without a loss on the way.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.pipelines.flow import AutoCdcFlow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from weir.client.schemas import kafka_name
from weir.model.definitions import table_name
from weir.model.errors import ConfigError, SqlError, WeirError
from weir.spark.pipelines.graph import Dataset, Definition, Definitions, FlowEdge, Graph, Kind, inputs_of, line_of
from weir.spark.pipelines.spec import Sink, Source, Spec
from weir.spark.sql.insert import is_about, written_columns
from weir.spark.tables.names import WeirCluster
from weir.spark.tables.query import Query, quoted
from weir.spark.tables.topic_tables import Tables

#: Each may become any that stands after it.
_NUMBERS = (t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType)


def unfit(given: t.StructType, wanted: t.DataType) -> str:
    """The first column whose type is another than the schema's, as a sentence; empty if there is none."""
    if not isinstance(wanted, t.StructType):
        return ""
    types = {one.name.lower(): one for one in wanted}
    for one in given:
        other = types.get(one.name.lower())
        if other is None or is_about(one.name) or fits(one.dataType, other.dataType):
            continue
        return f"column {one.name} is {one.dataType.simpleString()}, and must be {other.dataType.simpleString()}"
    return ""


def fits(given: t.DataType, wanted: t.DataType) -> bool:  # noqa: PLR0911 - a table of cases
    """Whether every value of the one type is one of the other."""
    match given, wanted:
        case t.StructType(), t.StructType():
            types = {one.name.lower(): one.dataType for one in wanted}
            return all(one.name.lower() in types and fits(one.dataType, types[one.name.lower()]) for one in given)
        case t.ArrayType(), t.ArrayType():
            return fits(given.elementType, wanted.elementType)
        case t.MapType(), t.MapType():
            return fits(given.keyType, wanted.keyType) and fits(given.valueType, wanted.valueType)
        case t.DecimalType(), t.DecimalType():
            whole = wanted.precision - wanted.scale
            return given.scale <= wanted.scale and given.precision - given.scale <= whole
        case t.DecimalType(), t.DoubleType():
            return True
        case t.DateType(), t.TimestampType() | t.TimestampNTZType():
            return True
        case t.NullType(), _:
            return True
    order = [at for kind in (given, wanted) for at, one in enumerate(_NUMBERS) if type(kind) is one]
    if len(order) == 2:
        return order[0] <= order[1] and not (isinstance(given, t.LongType) and isinstance(wanted, t.FloatType))
    return type(given) is type(wanted)


_STREAM = re.compile(r"\bSTREAM\s*(?:\(\s*((?:`[^`]+`|[\w.])+)\s*\)|(?=[\w`]))", re.IGNORECASE)
_NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"


@dataclass
class Resolved:
    graph: Graph
    #: What does not go together, a sentence each.
    problems: list[str] = field(default_factory=list)
    #: By flow: the columns that it writes, where it writes a topic of the file's.
    written: dict[str, t.StructType] = field(default_factory=dict)
    #: By sink: the schema that its topic gets, since it has none.
    to_register: dict[str, str] = field(default_factory=dict)


def source_frame(spark: SparkSession, place: WeirCluster, source: Source) -> DataFrame:
    """A topic as the pipeline reads it; SqlError if there is none."""
    tables = Tables(lambda: spark, place)
    streaming = source.read == "stream"
    options = {"startingOffsets": source.start} if streaming else {}
    if source.values == "raw":
        tables.check_exists(source.topic)
        reader: Any = spark.readStream if streaming else spark.read
        found: DataFrame = reader.format("weir").options(**place.options, **options).load(kafka_name(source.topic))
        return found
    return tables.table(source.topic, streaming=streaming, options=options, mode=source.mode)


def resolve(spec: Spec, place: WeirCluster, found: Definitions) -> Resolved:
    """Everything is looked at, so that all problems are told at once."""
    spark = found.spark
    graph = Graph({**{name: _topic(one, Kind.SOURCE) for name, one in spec.sources.items()}, **found.datasets})
    graph.datasets |= {name: _topic(one, Kind.SINK) for name, one in spec.sinks.items()}
    done = Resolved(graph)
    views: list[str] = []
    try:
        for source in spec.sources.values():
            try:
                frame = source_frame(spark, place, source)
                _know(graph, source.name, frame.schema)
                _view(frame, source.name, views)
            except WeirError as bad:
                done.problems.append(f"source {source.name}: {_sentence(bad)}")
        _flows(spec, place, found, done, views)
    finally:
        for name in views:
            spark.catalog.dropTempView(name)
    done.problems.extend(f"{name} is in the file, and no flow reads or writes it" for name in graph.unused())
    if not done.problems:
        graph.layers()
    return done


def _flows(spec: Spec, place: WeirCluster, found: Definitions, done: Resolved, views: list[str]) -> None:
    """Those whose inputs are not known yet wait for the next turn."""
    left = list(found.flows)
    while left:
        waiting: list[tuple[Definition, str]] = []
        for one in left:
            try:
                _flow(spec, place, found.spark, one, done=done, views=views)
            except AnalysisException as failure:
                if _NOT_FOUND not in (failure.getCondition() or ""):
                    done.problems.append(_problem(one, _first_line(failure)))
                else:
                    waiting.append((one, _first_line(failure)))
            except WeirError as bad:
                done.problems.append(_problem(one, _sentence(bad)))
            except Exception as bad:  # whatever its function raises: it is one flow of many
                said = f"{type(bad).__name__}: {_first_line(bad)}"
                done.problems.append(_problem(one, said, bad))
        if len(waiting) == len(left):
            done.problems.extend(_problem(one, why) for one, why in waiting)
            return
        left = [one for one, _ in waiting]


def _problem(one: Definition, what: str, raised: Exception | None = None) -> str:
    """With where it is: the line of the definition, or of its function where it raised something."""
    place = None if isinstance(one.flow, AutoCdcFlow) or one.flow is None else one.flow.source_code_location
    line = 0 if raised is None or place is None else line_of(raised, place.filename)
    where = one.where if place is None or not line else f"{Path(place.filename).name}, line {line}"
    return f"flow {one.name}: {what} ({where})" if where else f"flow {one.name}: {what}"


def _flow(
    spec: Spec, place: WeirCluster, spark: SparkSession, one: Definition, *, done: Resolved, views: list[str]
) -> None:
    graph = done.graph
    if one.make is None:
        graph.flows.append(FlowEdge(one.name, one.target, (one.source,)))
        return
    frame = one.make()
    if not hasattr(frame, "schema"):
        raise ConfigError("it gives no frame", hint="return a DataFrame")
    schema = frame.schema
    reads = list(reads_of(frame, graph.datasets))
    graph.flows.append(FlowEdge(one.name, one.target, inputs_of(reads, graph.datasets)))
    if one.target in spec.sinks:
        sink = spec.sinks[one.target]
        written = with_key(schema, sink)
        done.written[one.name] = written
        _check_sink(place, spark, sink, written, done)
    elif one.target in views:
        if not _same(schema, graph.datasets[one.target]):
            raise SqlError(f"its columns are not those of the other flows into {one.target}")
    else:
        _know(graph, one.target, schema)
        _view(frame, one.target, views)


def _check_sink(place: WeirCluster, spark: SparkSession, sink: Sink, schema: t.StructType, done: Resolved) -> None:
    """Against the registry: columns and types; or what is to be registered."""
    tables = Tables(lambda: spark, place)
    registered = tables.value_schema(sink.topic)
    _, definition = written_columns(schema, sink.topic, registered)
    if registered is not None:
        wrong = unfit(schema, registered.type)
        if wrong:
            raise SqlError(f"{wrong}, by the schema of {table_name(sink.topic)}", hint="cast it")
        _know(done.graph, sink.name, registered.type)
    elif definition is not None:
        done.to_register[sink.name] = definition
        _know(done.graph, sink.name, schema)


def with_key(schema: t.StructType, sink: Sink) -> t.StructType:
    """The columns that are written, with the one that the file calls the key as `key`, too."""
    if sink.key is None:
        return schema
    fields = {one.name.lower(): one for one in schema}
    if sink.key.lower() not in fields:
        raise SqlError(f"it has no column {sink.key}, which is the key of {sink.name}", hint="select it")
    others = [one for one in schema if one.name.lower() not in ("key", "__key", "__raw_key")]
    return t.StructType([*others, t.StructField("key", fields[sink.key.lower()].dataType)])


def _topic(one: Source | Sink, kind: Kind) -> Dataset:
    return Dataset(one.name, kind, kafka_name(one.topic))


def _know(graph: Graph, name: str, schema: t.DataType) -> None:
    if isinstance(schema, t.StructType):
        columns = tuple((one.name, one.dataType.simpleString()) for one in schema)
        graph.datasets[name] = replace(graph.datasets[name], columns=columns)


def _same(schema: t.StructType, dataset: Dataset) -> bool:
    return {(one.name, one.dataType.simpleString()) for one in schema} == set(dataset.columns)


def _view(frame: DataFrame, name: str, views: list[str]) -> None:
    frame.createOrReplaceTempView(name)
    views.append(name)


# --- what a frame reads -----------------------------------------------------------------------------------------


def reads_of(frame: Any, known: Mapping[str, Dataset]) -> Iterator[str]:
    """Names of datasets, and of what is outside: those that the frame names itself."""
    if hasattr(frame, "_jdf"):
        yield from _reads_of_plan(frame._jdf.queryExecution().analyzed(), known)
    else:
        yield from _reads_of_proto(frame._plan.plan(frame._session.client))


def _reads_of_plan(plan: Any, known: Mapping[str, Dataset]) -> Iterator[str]:
    """A view has its own plan below its name."""
    if plan.nodeName() == "SubqueryAlias" and plan.alias() in known:
        yield str(plan.alias())
        return
    children = plan.children()
    for at in range(children.size()):
        yield from _reads_of_plan(children.apply(at), known)


def _reads_of_proto(message: Any) -> Iterator[str]:
    name = message.DESCRIPTOR.full_name
    if name == "spark.connect.Read":
        if message.HasField("named_table"):
            yield message.named_table.unparsed_identifier
        else:
            options = message.data_source.options
            yield options.get("subscribe") or next(iter(message.data_source.paths), message.data_source.format)
        return
    if name == "spark.connect.SQL":
        yield from reads_of_sql(message.query)
    for field_of, value in message.ListFields():
        if field_of.message_type is None:
            continue
        if field_of.message_type.GetOptions().map_entry:
            continue
        for one in value if field_of.is_repeated else (value,):
            yield from _reads_of_proto(one)


def reads_of_sql(text: str) -> list[str]:
    """Tables and streams that a query reads."""
    plain = _STREAM.sub(lambda found: found.group(1) or "", text)
    return [".".join(parts) for parts in Query.of(plain).names]


def _first_line(failure: Exception) -> str:
    return (str(failure).strip() or type(failure).__name__).splitlines()[0]


def _sentence(bad: WeirError) -> str:
    return f"{bad.what} ({bad.hint})" if bad.hint else bad.what


def message_select(frame: DataFrame, sink: Sink, schema: t.StructType, columns: list[Any]) -> DataFrame:
    """The frame as messages. What its columns are is known, so Spark need not be asked."""
    from pyspark.sql import functions as f

    if sink.key is not None and "key" in schema.names:
        frame = frame.withColumn("key", f.col(quoted(sink.key)))
    return frame.select(*columns)
