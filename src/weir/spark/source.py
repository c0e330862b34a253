"""The data source `weir`: topics as tables, and as streams."""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from weir.client.kafka.cluster import Cluster
from weir.spark.columns import schema_of
from weir.spark.filters import Pushed, push
from weir.spark.option_table import known
from weir.spark.option_values import flag
from weir.spark.options import SourceOptions, parse
from weir.spark.planning import Losses, batch_ranges
from weir.spark.ranges import Range, split
from weir.spark.reading import read_range
from weir.spark.streaming import TopicStreamReader


class WeirSource(DataSource):
    """`spark.read.format("weir")` and `spark.readStream.format("weir")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "weir"

    def schema(self) -> StructType:
        headers = known(self._given).get("includeHeaders", "false")
        return schema_of(headers=flag("includeHeaders", headers))

    def reader(self, schema: StructType) -> "TopicReader":
        return TopicReader(parse(self._given, streaming=False))

    def streamReader(self, schema: StructType) -> TopicStreamReader:
        return TopicStreamReader(parse(self._given, streaming=True))


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, value: Range) -> None:
        super().__init__(value)


class TopicReader(DataSourceReader):
    """A batch read: what is in the topics when it is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pushed = Pushed()

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._pushed, left = push(filters)
        return left

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with Cluster(options.kafka) as cluster:
            ranges = batch_ranges(cluster, options, self._pushed.since_ms, Losses(options.fail_on_data_loss))
        narrowed = self._pushed.narrow(ranges)
        return [
            RangePartition(one)
            for one in split(narrowed, options.min_partitions, options.max_records_per_partition)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition.value, Range):  # Spark makes one of nothing where there are none
            yield from read_range(self._options, partition.value)
