"""The stream that a function reads on Spark: the data source `weir`, with inputs that come and go by updates.

For any other query, a topic that it has read and that is not among its topics any more is a loss. Here it is what
the user has asked for: its position is forgotten, and not told to the brokers, who would make its subscription
again. And a topic that is new is read from where its subscription is: what came since that was made is kept for
the function. An input that was deleted and created again is read from its start.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from weir.client.kafka.cluster import Partition
from weir.client.kafka.positions import committed
from weir.spark.source.option_values import to_json
from weir.spark.source.options import LATEST, parse
from weir.spark.source.planning import Offsets, partitions_of, start_offsets
from weir.spark.source.source import WeirSource
from weir.spark.source.streaming import Json, TopicStreamReader

log = logging.getLogger(__name__)


class FunctionSource(WeirSource):
    """`spark.readStream.format("weir-function")`."""

    @classmethod
    def name(cls) -> str:
        return "weir-function"

    def streamReader(self, schema: StructType) -> "FunctionReader":
        return FunctionReader(parse(self._given, streaming=True))


class FunctionReader(TopicStreamReader):
    """Its options name topics and a subscription."""

    def initialOffset(self) -> Json:
        if self._options.start.word != LATEST:
            return super().initialOffset()
        partitions = partitions_of(self._brokers(), self._options)
        begins = start_offsets(self._brokers(), self._options, partitions) | self._kept(partitions)
        return to_json(begins, self._brokers().topic_ids)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        return super().latestOffset(self._of_inputs(start), limit)

    def _begins_of_new(self, partitions: Sequence[Partition]) -> Offsets:
        return self._kept(partitions)

    def _was_recreated(self, topic: str, before: str, now: str, what: str) -> None:
        log.warning("topic %s was deleted and created again (id %s, then %s); %s", topic, before, now, what)

    def commit(self, end: Json) -> None:
        super().commit(self._of_inputs(end))

    def _starts_of_new(self, began: Mapping[Partition, int], found: Mapping[Partition, int]) -> Offsets:
        usual = super()._starts_of_new(began, found)
        return usual | self._kept(usual)

    def _kept(self, partitions: Iterable[Partition]) -> Offsets:
        """Where the subscription is, of partitions that the query has not read: there it was made."""
        asked = list(partitions)
        return committed(self._brokers(), self._options.subscription or "", asked) if asked else {}

    def _of_inputs(self, offsets: Json) -> Json:
        """A micro-batch that was planned before the update has more, and is finished."""
        return {topic: parts for topic, parts in offsets.items() if topic in self._options.wanted.topics}
