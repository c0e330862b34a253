"""`weir lake run`: looks at every topic of the lake now and then, and exports those that are due."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.exceptions import CommitFailedException

from weir.client.kafka.cluster import Cluster, Described
from weir.client.kafka.connection import RETRIABLE
from weir.client.schemas import kafka_name
from weir.model.errors import (
    LakeConflictError,
    LakeError,
    LakeUnfinishedError,
    NetworkError,
    TopicClosedError,
    TopicNotFoundError,
    WeirError,
)
from weir.model.topics import TopicName
from weir.spark.lake.catalog import Definition, in_a_line, whole_lake
from weir.spark.lake.export import Exported, Exporter, Standing, Told, standing_of
from weir.spark.lake.table import LakeTable, drop_table, find_table, is_own
from weir.spark.lake.topics import (
    LakeTopic,
    TopicEnds,
    hold,
    hold_all,
    lake_topics,
    let_go,
    let_go_internal,
    look,
    look_at,
)
from weir.spark.lake.upkeep import Kept, Limits, Tasks, Upkeep, drop_deleted
from weir.spark.options import connection
from weir.spark.tables.names import WeirCluster

log = logging.getLogger(__name__)

#: What a row takes in Parquet, as long as nothing is known of the topic's.
_ROW_BYTES = 200.0
#: How often an export that others came before begins again.
_TRIES = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 300.0


@dataclass(frozen=True, slots=True)
class Trigger:
    """A topic is exported when its oldest message that is not in the lake waits for so long, or when what waits
    would be files of so many bytes."""

    age_s: float = 300.0
    size_bytes: int = 128 * 1024 * 1024


@dataclass(slots=True)
class _Seen:
    """What is remembered of a topic: that of a thousand quiet ones nothing is asked but where they end."""

    definition: Definition
    #: Since when something waits.
    since_s: float | None = None
    row_bytes: float = _ROW_BYTES
    failures: int = 0
    again_s: float = 0.0
    #: Which topic of its name, with how many partitions, was told to keep what is not exported.
    held: tuple[str, int] = ("", 0)
    #: How far its table was when it was looked into; None: it is to be looked into.
    exported: Mapping[int, int] | None = None


def standings(
    place: WeirCluster, chosen: Callable[[TopicName], bool] = lambda name: True
) -> Iterator[tuple[LakeTopic, LakeTable | None, list[Standing]]]:
    """How far everything is that was chosen."""
    topics = [one for one in lake_topics(place) if chosen(one.name)]
    with Cluster(connection(place.options)) as cluster:
        found = look(cluster, [one.name for one in topics])
        for one in topics:
            there = found[one.name]
            if isinstance(there, TopicNotFoundError):  # deleted meanwhile
                continue
            if isinstance(there, WeirError):
                there = look_at(cluster, one.name)
            table = find_table(one.name, one.definition)
            if table is not None and not table.is_of(there.topic_id):
                table = None
            yield one, table, standing_of(there.ends, table)


class LakeRunner:
    """`once`, or `step` again and again."""

    def __init__(
        self,
        place: WeirCluster,
        exporter: Exporter,
        trigger: Trigger,
        *,
        told: Told | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = place
        self._exporter = exporter
        self._trigger = trigger
        self._told = told
        self._now = now
        self._seen: dict[TopicName, _Seen] = {}
        #: Whether internal topics were let go that an earlier release has exported.
        self._swept = False

    def topics(self) -> list[LakeTopic]:
        """Those that the lake is on for."""
        return lake_topics(self._place)

    def once(self) -> tuple[list[Exported], dict[TopicName, str]]:
        """Export all that is acknowledged now. What failed is told by its topic; the others are exported."""
        found, failed = [], {}
        every = lake_topics(self._place)
        left = list(every)
        while left:
            one = left.pop(0)
            try:
                added = self._patiently(one)
            except TopicNotFoundError:
                continue
            except Exception as failure:  # Spark's, pyiceberg's and the store's are of many kinds
                log.debug("why:", exc_info=failure)
                failed[one.name] = in_a_line(failure)
                if (away := self._away(failure)) is not None:
                    failed |= {other.name: in_a_line(away) for other in left}
                    break
                continue
            if added is not None:
                found.append(added)
        else:
            with suppress(WeirError):
                self._let_go([one.name for one in every], lake_topics(self._place))
        return found, failed

    def _patiently(self, one: LakeTopic) -> Exported | None:
        """Again, from where the table is now, if others came before: what they had to add they have added."""
        for _ in range(_TRIES - 1):
            try:
                return self._exporter.export(one.name, one.definition, self._told)
            except (LakeConflictError, CommitFailedException) as second:
                log.info("%s: %s", one.name, second)
        return self._exporter.export(one.name, one.definition, self._told)

    def step(self) -> list[Exported]:
        """Export what is due. One topic's failure does not hold up the others; it is tried again later."""
        found = []
        try:
            topics = lake_topics(self._place)
            there = self._look(topics)
            self._sweep()
        except (*RETRIABLE, TopicClosedError) as away:
            log.warning("the broker does not answer: %s", away)
            return []
        for name in self._let_go(list(self._seen), topics):
            del self._seen[name]
        for one in topics:
            seen = self._seen[one.name]
            try:
                if self._now() >= seen.again_s and self._is_due(one, seen, there[one.name]):
                    seen.exported = None  # whatever becomes of it
                    added = self._exporter.export(one.name, one.definition, self._told)
                    seen.since_s, seen.failures = None, 0
                    if added is not None and added.rows:
                        seen.row_bytes = added.bytes / added.rows
                    if added is not None:
                        found.append(added)
            except TopicNotFoundError:
                self._seen.pop(one.name, None)
            except Exception as failure:  # Spark's, pyiceberg's and the store's are of many kinds
                seen.failures += 1
                pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (seen.failures - 1))
                seen.again_s = self._now() + pause_s
                log.warning("%s was not exported (next try in %.0f s): %s", one.name, pause_s, in_a_line(failure))
                log.debug("why:", exc_info=failure)
                if self._away(failure) is not None:
                    break
        return found

    def look_after(self, tasks: Tasks, limits: Limits) -> Iterator[tuple[TopicName, Kept | str | LakeError]]:
        """What was done for each table, or why it was not; tables of topics that were deleted go first."""
        lakes = whole_lake(self._place.access)
        with Cluster(connection(self._place.options)) as cluster:
            for gone in drop_deleted(cluster, list(lakes.values())):
                yield gone, "the topic was deleted, and so was its table"
            topics = lake_topics(self._place)
            there = cluster.describe([kafka_name(one.name) for one in topics])
            for one in topics:
                try:
                    did = self._looked_after(one, there[kafka_name(one.name)], cluster, tasks, limits)
                except TopicNotFoundError:
                    continue
                except Exception as failure:  # pyiceberg's and the store's are of many kinds
                    log.debug("why:", exc_info=failure)
                    yield one.name, LakeError(in_a_line(failure))
                    continue
                if did is not None:
                    yield one.name, did

    def _looked_after(
        self, one: LakeTopic, there: Described | WeirError, cluster: Cluster, tasks: Tasks, limits: Limits
    ) -> Kept | str | None:
        """None if there is no table."""
        if isinstance(there, WeirError):
            raise there
        table = find_table(one.name, one.definition)
        if table is None or not is_own(table, one.definition):
            return None
        if not table.is_of(there.topic_id):
            drop_table(table, one.definition)
            return "the topic was deleted and made again, and the table of the old one is gone"
        return Upkeep(table, one.definition, tasks, limits).all(cluster)

    def _away(self, failure: Exception) -> Exception | None:
        """What is in the way of every topic, and not only of this one: each would wait for a minute."""
        cause = failure.__cause__ if isinstance(failure, LakeUnfinishedError) else failure
        if isinstance(cause, NetworkError | TopicClosedError):
            try:
                lake_topics(self._place)
            except (NetworkError, TopicClosedError) as away:
                return away
        return None

    def _sweep(self) -> None:
        """Hold nothing back of internal topics, which earlier releases exported, too; once."""
        if not self._swept:
            let_go_internal(self._place)
            self._swept = True

    def _let_go(self, seen: Sequence[TopicName], on: Sequence[LakeTopic]) -> list[TopicName]:
        """Those that the lake is no longer on for. What an export that ran as it was turned off has told the
        brokers would keep all that comes, for ever."""
        still, gone = {one.name for one in on}, []
        for name in seen:
            if name not in still:
                with suppress(WeirError):
                    let_go(self._place, name.namespace, name)
                    gone.append(name)
        return gone

    def _look(self, topics: Sequence[LakeTopic]) -> dict[TopicName, TopicEnds | WeirError]:
        """Where each ends. Those that are new here keep from now on what is not exported."""
        new = [one.name for one in topics if one.name not in self._seen]
        for one in topics:
            if one.name not in self._seen or self._seen[one.name].definition != one.definition:
                self._seen[one.name] = _Seen(one.definition)
        with Cluster(connection(self._place.options)) as cluster:
            there = look(cluster, [one.name for one in topics])
            try:
                hold_all(cluster, new)
            except RETRIABLE:
                raise
            except WeirError as failure:  # of one of them: each is told by itself
                log.debug("why:", exc_info=failure)
                return there
        for name in new:
            ends = there[name]
            if isinstance(ends, TopicEnds):
                self._seen[name].held = ends.key
        return there

    def _is_due(self, one: LakeTopic, seen: _Seen, there: "TopicEnds | WeirError") -> bool:
        if isinstance(there, WeirError):
            raise there
        if seen.held != there.key:  # partitions that came after `weir lake on`, or a topic that was made again
            hold(self._place, one.name.namespace, one.name)
            seen.held, seen.exported = there.key, None
        if seen.exported is None:
            table = find_table(one.name, one.definition)
            if table is not None and not table.is_of(there.topic_id):
                return True  # of a topic that was deleted: the export makes another
            seen.exported = {} if table is None else table.offsets()
        waiting = sum(max(0, end - seen.exported.get(index, 0)) for index, end in there.ends.items())
        if not waiting:
            seen.since_s = None
            return False
        if seen.since_s is None:
            seen.since_s = self._now()
        return (
            self._now() - seen.since_s >= self._trigger.age_s
            or waiting * seen.row_bytes >= self._trigger.size_bytes
        )
