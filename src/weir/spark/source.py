"""The data source `weir`: topics as tables, and as streams."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from weir.client.kafka.cluster import Cluster
from weir.model.errors import ConfigError
from weir.spark.columns import check_columns, schema_of
from weir.spark.filters import Pushed, push
from weir.spark.option_table import known
from weir.spark.option_values import flag
from weir.spark.options import SourceOptions, parse
from weir.spark.planning import Losses, batch_ranges
from weir.spark.ranges import Range, split
from weir.spark.reading import read_range
from weir.spark.schemas import value_schemas
from weir.spark.sink import BatchWriter, StreamWriter
from weir.spark.sink_options import parse_sink
from weir.spark.streaming import TopicStreamReader
from weir.spark.typed import ValueSchema


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
        if given.get("valueFormat", "binary") == "binary":
            return schema_of(headers=headers)
        values = value_schemas(parse(self._shared(given), streaming=True))
        return schema_of(headers=headers, value=next(iter(values.values())).type)

    def _shared(self, given: dict[str, str]) -> dict[str, str]:
        """What both kinds of reads understand: which of them it will be is not known yet."""
        return {name: value for name, value in given.items() if not name.startswith(("starting", "ending"))}

    def reader(self, schema: StructType) -> "TopicReader":
        options = parse(self._given, streaming=False)
        return TopicReader(options, value_schemas(options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        _check_write(schema, overwrite)
        return BatchWriter(parse_sink(self._given))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        _check_write(schema, overwrite)
        return StreamWriter(parse_sink(self._given))

    def streamReader(self, schema: StructType) -> TopicStreamReader:
        options = parse(self._given, streaming=True)
        return TopicStreamReader(options, value_schemas(options))


def _check_write(schema: StructType, overwrite: bool) -> None:
    if overwrite:
        raise ConfigError("topics are only added to", hint='use mode("append")')
    check_columns(schema)


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, value: Range) -> None:
        super().__init__(value)


class TopicReader(DataSourceReader):
    """A batch read: what is in the topics when it is planned."""

    def __init__(self, options: SourceOptions, values: Mapping[str, ValueSchema] | None = None) -> None:
        self._options = options
        self._values = values
        self._pushed = Pushed()

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._pushed, left = push(filters)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with Cluster(options.kafka) as cluster:
            ranges = batch_ranges(
                cluster,
                options,
                self._pushed.since_ms,
                self._pushed.before_ms,
                Losses(options.fail_on_data_loss),
            )
        narrowed = self._pushed.narrow(ranges)
        return [
            RangePartition(one)
            for one in split(narrowed, options.min_partitions, options.max_records_per_partition)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition.value, Range):  # Spark makes one of nothing where there are none
            yield from read_range(self._options, partition.value, self._values)
