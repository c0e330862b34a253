"""The data source `weir`: topics as tables, and as streams.

Spark has it loaded by several processes, most of which only plan. What decodes and encodes, with its compiler, is
loaded where it is needed: that halves the time to a session's first row.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import BinaryType, StructType

from weir.model.errors import ConfigError
from weir.spark.columns import check_columns, schema_of
from weir.spark.options import SinkOptions, SourceOptions, flag, known, parse, parse_sink
from weir.spark.source.planning import Losses, Older, Pushed, Range, batch_ranges, push, split
from weir.spark.source.streaming import TopicStreamReader
from weir.spark.source_environment import warn_unprotected
from weir.spark.workers import borrowed, settle

if TYPE_CHECKING:
    from weir.spark.lake.history import TopicHistory
    from weir.spark.sink import BatchWriter, StreamWriter
    from weir.spark.values.typed import ValueSchema


class WeirSource(DataSource):
    """`spark.read.format("weir")` and `spark.readStream.format("weir")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "weir"

    def schema(self) -> StructType:
        given = known(self._given)
        headers = flag("includeHeaders", given.get("includeHeaders", "false"))
        raw = flag("includeRaw", given.get("includeRaw", "false"))
        if given.get("valueFormat", "binary") == "binary":
            return schema_of(headers=headers, raw=raw)
        values = _values(parse(self._shared(given), streaming=True))
        first = next(iter(values.values()))
        corrupt = given.get("columnNameOfCorruptRecord") or None
        return schema_of(headers=headers, value=first.type, key=first.key_type, corrupt=corrupt, raw=raw)

    def _shared(self, given: dict[str, str]) -> dict[str, str]:
        """What both kinds of reads understand: which of them it will be is not known yet."""
        return {name: value for name, value in given.items() if not name.startswith(("starting", "ending"))}

    def reader(self, schema: StructType) -> "TopicReader":
        options = parse(self._given, streaming=False)
        return TopicReader(options, _for_columns(schema, _values(options)))

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        from weir.spark.sink import BatchWriter

        return BatchWriter(self._sink(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        from weir.spark.sink import StreamWriter

        writer = StreamWriter(self._sink(schema, overwrite))
        settle()  # asked for every micro-batch, by workers that do nothing else
        return writer

    def _sink(self, schema: StructType, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise ConfigError("topics are only added to", hint='use mode("append")')
        check_columns(schema)
        options = parse_sink(self._given)
        if options.topic is None and "topic" not in schema.names:
            raise ConfigError("rows have no topic", hint="give the option topic, or a column of that name")
        return options

    def streamReader(self, schema: StructType) -> TopicStreamReader:
        warn_unprotected()
        options = parse(self._given, streaming=True)
        return TopicStreamReader(options, _for_columns(schema, _values(options)))


def _values(options: SourceOptions) -> "dict[str, ValueSchema]":
    """By topic; empty if the values stay bytes."""
    if options.registry is None:
        return {}
    from weir.spark.source.reading import value_schemas

    return value_schemas(options)


def _for_columns(schema: StructType, values: "Mapping[str, ValueSchema]") -> "dict[str, ValueSchema]":
    """Keys stay bytes where the query's own schema has them so."""
    if isinstance(schema["key"].dataType, BinaryType):
        return {topic: one.without_key() for topic, one in values.items()}
    return dict(values)


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, value: Range, history: "TopicHistory | None" = None, topic_id: str = "") -> None:
        super().__init__(value)
        #: Of the topic as it was when the read was planned; empty if it is not known.
        self.topic_id = topic_id
        #: Where the range is, if brokers no longer have it.
        self.history = history


def _in_the_lake(
    wanted: Sequence[Older], options: SourceOptions, losses: Losses
) -> "list[tuple[TopicHistory, Range]]":
    """What the lake has of offsets that lie before those of the brokers. `losses` is told what nobody has."""
    if not wanted:
        return []  # which is most plans, and none of them has to load what reads tables
    from weir.spark.lake.history import find_topic_history

    found = []
    topics = {one.range.partition.topic for one in wanted}
    histories = {topic: find_topic_history(options, topic) for topic in topics}
    for one in wanted:
        partition, start = one.range.partition, one.range.start
        history = histories[partition.topic]
        there = Range(partition, start, start) if history is None else history.part_of(one.range)
        if history is not None and there.size > 0:
            found.append((history, there))
        if one.named:
            # Where the user has named an offset, it is missed too; a seam is where the lake has ended before.
            if there.size > 0 and there.start > start and options.start.word is None:
                losses.report(partition, start, there.start)
            if there.end < one.range.end:
                losses.report(partition, there.end, one.range.end)
    return found


class Pushing:
    """A reader's `pushFilters`, and what it was given.

    In a session that has push-down off, which is Spark's default, Spark refuses every reader whose class has a
    `pushFilters` of its own, even for queries without a filter. So a reader has none, but this in its place, which
    shows the base class's function where Spark looks for it.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self) -> None:
        self.found = Pushed()

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self.found, left = push(filters)
        return left


class TopicReader(DataSourceReader):
    """A batch read: what is in the topics when it is planned."""

    def __init__(self, options: SourceOptions, values: "Mapping[str, ValueSchema] | None" = None) -> None:
        self._options = options
        self._values = values
        self.pushFilters: Pushing = Pushing()

    def partitions(self) -> Sequence[InputPartition]:
        options, pushed = self._options, self.pushFilters.found
        with borrowed(options.kafka) as cluster:
            losses = Losses(options.fail_on_data_loss)
            ranges, older = batch_ranges(cluster, options, pushed.since_ms, pushed.before_ms, losses)
            ids = {one.partition.topic: cluster.topic_ids.get(one.partition.topic, "") for one in ranges}
        before = _in_the_lake(older, options, losses)
        settle()
        narrowed = pushed.narrow(ranges)
        most = options.max_records_per_partition
        pieces = [
            RangePartition(one, topic_id=ids[one.partition.topic])
            for one in split(narrowed, options.min_partitions, most)
        ]
        for history, one in before:
            pieces += [RangePartition(piece, history) for piece in split(pushed.narrow([one]), None, most)]
        return pieces

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, RangePartition) and partition.history is not None:
            yield from partition.history.read(partition.value, self._options, self._values)
        elif isinstance(partition.value, Range):
            from weir.spark.source.reading import read_range

            topic_id = partition.topic_id if isinstance(partition, RangePartition) else ""
            yield from read_range(self._options, partition.value, self._values, topic_id=topic_id)
        else:  # Spark makes a task of nothing where there are none
            settle()
