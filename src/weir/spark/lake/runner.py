"""`weir lake run`: looks at every topic of the lake now and then, and exports those that are due."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.exceptions import CommitFailedException

from weir.client.kafka.cluster import Cluster
from weir.client.registry import topic_of
from weir.model.errors import (
    LakeConflictError,
    LakeUnfinishedError,
    NetworkError,
    TopicClosedError,
    TopicNotFoundError,
    WeirError,
)
from weir.model.replays import is_selection
from weir.model.topics import TopicName
from weir.spark.lake.definitions import Definition, whole_lake
from weir.spark.lake.export import Exported, Exporter, Standing, Told
from weir.spark.lake.failures import in_a_line
from weir.spark.lake.holding import hold, let_go
from weir.spark.lake.tables import LakeTable, find_table, is_own
from weir.spark.lake.upkeep import Kept, Limits, Tasks, Upkeep, drop_deleted
from weir.spark.source.options import connection
from weir.spark.sql.cluster import WeirCluster

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


@dataclass(frozen=True, slots=True)
class LakeTopic:
    """A topic that is in the lake, or is to be."""

    name: TopicName
    definition: Definition


@dataclass(slots=True)
class _Seen:
    #: Since when something waits.
    since_s: float | None = None
    row_bytes: float = _ROW_BYTES
    failures: int = 0
    again_s: float = 0.0
    #: Of so many partitions the topic keeps what is not exported.
    held: int = 0


def lake_topics(place: WeirCluster) -> list[LakeTopic]:
    """Every topic that the lake is on for."""
    lakes = whole_lake(place.access)
    if not lakes:
        return []
    with Cluster(connection(place.options)) as cluster:
        names = [topic_of(name) for name in cluster.topics()]
    found = []
    for name in names:
        lake = lakes.get(name.namespace)
        definition = None if lake is None or is_selection(name) else lake.of(name)
        if definition is not None:
            found.append(LakeTopic(name, definition))
    return sorted(found, key=lambda one: str(one.name))


def standings(
    place: WeirCluster, exporter: Exporter
) -> Iterator[tuple[LakeTopic, LakeTable | None, list[Standing]]]:
    """How far everything is."""
    for one in lake_topics(place):
        table = find_table(one.name, one.definition)
        try:
            yield one, table, exporter.standing(one.name, table)
        except TopicNotFoundError:  # deleted meanwhile
            continue


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
        except (NetworkError, TopicClosedError) as away:
            log.warning("the broker does not answer: %s", away)
            return []
        for name in self._let_go(list(self._seen), topics):
            del self._seen[name]
        for one in topics:
            seen = self._seen.setdefault(one.name, _Seen())
            try:
                if self._now() >= seen.again_s and self._is_due(one, seen):
                    added = self._exporter.export(one.name, one.definition, self._told)
                    seen.since_s, seen.failures = None, 0
                    if added is not None:
                        seen.row_bytes = added.bytes / max(1, added.rows)
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

    def look_after(self, tasks: Tasks, limits: Limits) -> Iterator[tuple[TopicName, Kept | str]]:
        """What was done for each table, or why it was not; tables of topics that were deleted go first."""
        lakes = whole_lake(self._place.access)
        with Cluster(connection(self._place.options)) as cluster:
            for gone in drop_deleted(cluster, list(lakes.values())):
                yield gone, "the topic was deleted, and so was its table"
            for one in lake_topics(self._place):
                table = find_table(one.name, one.definition)
                if table is None or not is_own(table, one.definition):
                    continue
                try:
                    yield one.name, Upkeep(table, one.definition, tasks, limits).all(cluster)
                except TopicNotFoundError:
                    continue
                except Exception as failure:  # pyiceberg's and the store's are of many kinds
                    log.debug("why:", exc_info=failure)
                    yield one.name, f"it is tried again later: {failure}"

    def _away(self, failure: Exception) -> Exception | None:
        """What is in the way of every topic, and not only of this one: each would wait for a minute."""
        cause = failure.__cause__ if isinstance(failure, LakeUnfinishedError) else failure
        if isinstance(cause, NetworkError | TopicClosedError):
            try:
                lake_topics(self._place)
            except (NetworkError, TopicClosedError) as away:
                return away
        return None

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

    def _is_due(self, one: LakeTopic, seen: _Seen) -> bool:
        parts = self._exporter.standing(one.name, find_table(one.name, one.definition))
        if len(parts) != seen.held:  # a topic, or partitions, that came after `weir lake on`
            hold(self._place, one.name.namespace, one.name)
            seen.held = len(parts)
        waiting = sum(part.lag for part in parts)
        if not waiting:
            seen.since_s = None
            return False
        if seen.since_s is None:
            seen.since_s = self._now()
        return (
            self._now() - seen.since_s >= self._trigger.age_s
            or waiting * seen.row_bytes >= self._trigger.size_bytes
        )
