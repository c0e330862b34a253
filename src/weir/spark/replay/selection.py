"""Which messages a replay delivers: picked by Spark out of lake, topic and dead letters, and kept as a topic.

The selection is written as one epoch of a sink, so it is there as a whole or not at all, and once: whoever picks
again, because the first one died, picks for nothing. After that nothing depends on the query, on the lake, or on
what the topic trims.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from weir.client.admin import ask_v2, topic_path
from weir.client.kafka import groups
from weir.client.kafka.cluster import Cluster, Described
from weir.client.schemas import kafka_name, schemas_by, topic_of
from weir.client.sink_epochs import forget, last_epoch
from weir.model.definitions import (
    HEADERS,
    ID_HEADER,
    OFFSET_HEADER,
    PARTITION_HEADER,
    SELECTION_PREFIX,
    SUBSCRIPTION_HEADER,
    TOPIC_HEADER,
    Replay,
)
from weir.model.errors import (
    NotAllowedError,
    NotAuthorisedError,
    SchemaNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
    WeirError,
)
from weir.model.messages import CANCEL, DELAY_ID, DELIVER_AFTER, DELIVER_AT, NAMES
from weir.model.retry import DEAD_LETTERS, RetryPolicy
from weir.model.topics import TopicName
from weir.spark.options import connection
from weir.spark.replay.requests import subscriptions
from weir.spark.source.query_subscription import Progress
from weir.spark.sql.plan_safety import check_calls, check_condition_text
from weir.spark.tables.names import WeirCluster
from weir.spark.tables.query import check_condition
from weir.spark.tables.topic_tables import SENT_KEY, SENT_VALUE, Tables, is_unknown_column
from weir.wire.pulsar.translation import SCHEMA_VERSION

#: Whose position keeps the selection from being trimmed.
HOLDER = "replay"
_EMPTY = "CAST(array() AS array<struct<key:string,value:binary>>)"
#: What is known of a message that became a dead letter; null of others.
_DEAD = ("__dead_reason", "__dead_subscription", "__dead_deliveries", "__dead_at")
_DLQ = "-DLQ"
#: By which a message is known.
_PLACE = ("__partition", "__offset")
#: What asks for a delay, which was waited for once, or ends one.
_DELAYS = tuple(name.decode() for name in (DELIVER_AT, DELIVER_AFTER, DELAY_ID, CANCEL))


def selection_topic(replay: Replay) -> TopicName:
    return TopicName(replay.topic.namespace, f"{SELECTION_PREFIX}{replay.id}")


@dataclass(frozen=True, slots=True)
class Selector:
    """Picks messages with the tables of `weir sql`."""

    tables: Tables
    place: WeirCluster

    def count(self, replay: Replay) -> dict[int, int]:
        """How many it would deliver, by the partition that they come from."""
        rows = self.picked(replay).groupBy("__partition").count().collect()
        return {int(row["__partition"]): int(row["count"]) for row in rows}

    def write(self, replay: Replay, picked: DataFrame | None = None) -> None:
        """Keep the selection; what was kept before stays as it is. `picked`: the messages, if they are known."""
        sources, targets = _partitions(self.place, replay.topic), _partitions(self.place, replay.target)
        name = make_selection(self.place, replay, targets)
        picked = self.picked(replay) if picked is None else picked
        place = "__partition" if sources == targets else "CAST(NULL AS int)"
        rows = (
            picked.repartition(max(1, min(sources, 64)), "__partition")
            .sortWithinPartitions("__partition", "__offset")
            .selectExpr(
                f"{SENT_KEY} AS key",
                f"{self._value(replay)} AS value",
                f"{_headers(replay, self._unfit(replay))} AS headers",
                "__timestamp AS timestamp",
                f"{place} AS partition",
            )
        )
        once = {"sinkId": _sink(replay), "sinkEpoch": "0"}
        into = {**self.place.options, "topic": kafka_name(name), **once}
        rows.write.format("weir").options(**into).mode("append").save()

    def picked(self, replay: Replay) -> DataFrame:
        """The messages, with all their columns. SqlError if the condition is none."""
        if replay.where:
            check_condition(replay.where)
        try:
            return self._picked(replay)
        except AnalysisException as unknown:
            json = self.tables.json_fields(replay.topic) if is_unknown_column(unknown) else None
            if json is None:
                raise
        return self._picked(replay, json)

    def _picked(self, replay: Replay, json: StructType | None = None) -> DataFrame:
        frame, may_repeat = self._with_dead(replay, json)
        names = {name.lower() for name in frame.columns}
        if "headers" not in names:
            frame = frame.withColumn("headers", f.expr(_header_map()))
        if replay.since_ms is not None:
            frame = frame.where(f"__timestamp >= timestamp_millis({replay.since_ms})")
        if replay.until_ms is not None:
            frame = frame.where(f"__timestamp < timestamp_millis({replay.until_ms})")
        if replay.where:
            check_condition_text(frame.sparkSession, replay.where)
            frame = frame.where(replay.where)
            check_calls(frame)
        # One row for each death until here: the condition is over every one of them, the message is one.
        return frame.dropDuplicates(list(_PLACE)) if may_repeat else frame

    def _value(self, replay: Replay) -> str:
        """The bytes of the value. It is an error if they are only in the lake, and not as they were sent: tables
        kept none of typed values once."""
        typed = self.tables.value_type(replay.topic)
        if typed is None:
            return SENT_VALUE
        there = " OR ".join(f"`{name}` IS NOT NULL" for name in getattr(typed, "names", None) or ["value"])
        what = f"messages of {replay.topic} are only in its table, without the bytes as sent: begin later"
        return (
            f"CASE WHEN {SENT_VALUE} IS NULL AND ({there}) THEN CAST(raise_error({_quoted(what)}) AS binary) "
            f"ELSE {SENT_VALUE} END"
        )

    def _unfit(self, replay: Replay) -> Sequence[str]:
        """Headers that would be wrong where the messages go: versions of a schema are the topic's own."""
        there = _versions(self.place, replay.target)
        known = all(there.get(number) == one for number, one in _versions(self.place, replay.topic).items())
        return () if replay.target == replay.topic or known else (SCHEMA_VERSION,)

    # --- dead letters --------------------------------------------------------------------------------------------

    def _with_dead(self, replay: Replay, json: StructType | None) -> tuple[DataFrame, bool]:
        """The topic's messages, and those dead letters of it that are in neither topic nor lake any more; and
        whether some may be there more than once, since they died more than once."""
        # A value that does not fit its schema can be picked by its headers, its time and its key.
        main = self.tables.table(replay.topic, headers=True, raw=True, mode="PERMISSIVE", json=json)
        found = (self._dead(replay, name, json) for name in self._dead_topics(replay))
        dead = [frame for frame in found if frame is not None]
        if not dead:
            for name, kind in zip(_DEAD, ("string", "string", "int", "timestamp"), strict=True):
                main = main.withColumn(name, f.lit(None).cast(kind))
            return main, False
        letters = dead[0]
        for one in dead[1:]:
            letters = letters.unionByName(one)
        places = list(_PLACE)
        known = f.broadcast(letters.select(*places, *_DEAD))
        gone = letters.join(main.select(*places), places, "left_anti")
        both = main.join(known, places, "left")
        return both.unionByName(gone.select(*both.columns)), True

    def _dead_topics(self, replay: Replay) -> Sequence[TopicName]:
        """Where dead letters of the topic may be: as Weir and RocketMQ name them, or as retry policies say. Of all
        subscriptions, if it goes to none of them; also of those that are no longer there, if they have names as
        Weir gives them."""
        topic = replay.topic
        named: set[TopicName] = set()
        with Cluster(connection(self.place.options)) as cluster:
            there = {topic_of(name) for name in cluster.topics()}
        if replay.subscription is None:
            who = subscriptions(self.place, topic)
            own = (one for one in there if one.namespace == topic.namespace and one.local.endswith(_DLQ))
            named.update(one for one in own if one.local.startswith(f"{topic.local}-"))
        else:
            who = [replay.subscription]
            named.add(RetryPolicy().dead_letters_of(topic, replay.subscription))
        for name in who:
            named.add(TopicName(topic.namespace, f"{DEAD_LETTERS}{name}"))
            try:
                told = ask_v2(self.place.access, "GET", topic_path(topic, "subscription", name, "retry")) or {}
            except WeirError:
                continue
            said = told.get("deadLetterTopic")
            if said:
                named.add(TopicName.parse(said) if "/" in said else TopicName(topic.namespace, said))
        with Cluster(connection(self.place.options)) as cluster:  # of RocketMQ's names brokers list none
            told = cluster.describe([kafka_name(one) for one in named])
        found = {one for one in named if isinstance(told.get(kafka_name(one)), Described)}
        return sorted(found - {topic}, key=str)

    def _dead(self, replay: Replay, topic: TopicName, json: StructType | None) -> DataFrame | None:
        frame = self.tables.table(
            topic, headers=True, raw=True, mode="PERMISSIVE", schema_of_topic=replay.topic, json=json
        )
        said = {name: _header(f"weir-dead-{name}") for name in _TOLD}
        # A copy that a replay gave to a subscription, and that died in its turn, is the message it was made of.
        own = f"{_header(TOPIC_HEADER)} = {_quoted(str(replay.topic))}"
        copied = f"{own} AND {_header(SUBSCRIPTION_HEADER)} IS NOT NULL"
        partition, offset = (
            f"if({copied}, {_header(copy)}, {said[name]})"
            for copy, name in ((PARTITION_HEADER, "partition"), (OFFSET_HEADER, "offset"))
        )
        frame = frame.where(f"{said['topic']} IN ({', '.join(map(_quoted, _names(replay.topic)))})")
        if replay.subscription is not None:
            frame = frame.where(f"{said['subscription']} = {_quoted(replay.subscription)}")
        return (
            frame.withColumn("__dead_reason", f.expr(said["reason"]))
            .withColumn("__dead_subscription", f.expr(said["subscription"]))
            .withColumn("__dead_deliveries", f.expr(f"CAST({said['deliveries']} AS int)"))
            .withColumn("__dead_at", f.expr(f"timestamp_millis(CAST({said['died-ms']} AS bigint))"))
            .withColumn("__partition", f.expr(f"CAST(coalesce({partition}, '0') AS int)"))
            .withColumn("__offset", f.expr(f"CAST({offset} AS bigint)"))
            .withColumn("__topic", f.lit(kafka_name(replay.topic)))
        )


_TOLD = ("topic", "partition", "offset", "subscription", "reason", "deliveries", "died-ms")


def make_selection(place: WeirCluster, replay: Replay, partitions: int) -> TopicName:
    """The topic that holds the selection, which nothing trims before it is delivered."""
    topic = selection_topic(replay)
    with suppress(TopicExistsError, NotAllowedError):  # whoever began it has made it
        ask_v2(place.access, "PUT", topic_path(topic, "partitions"), partitions)
    with Cluster(connection(place.options)) as cluster:
        parts = cluster.partitions([kafka_name(topic)])
        placed = groups.committed(cluster, HOLDER, parts)
        new = {part: 0 for part in parts if part not in placed}
        if new:
            groups.commit(cluster, HOLDER, new, Progress().metadata(retain=True))
    return topic


def is_picked(place: WeirCluster, replay: Replay) -> bool:
    """Whether its whole selection was written; as far as who asks is who began it."""
    return last_epoch(place.access, _sink(replay)) >= 0


def is_kept(place: WeirCluster, replay: Replay) -> bool:
    """Whether there is something of its selection; it may not be whole yet."""
    with Cluster(connection(place.options)) as cluster:
        return kafka_name(selection_topic(replay)) in cluster.topics()


def drop_selection(place: WeirCluster, replay: Replay) -> None:
    """What is delivered need not be kept; fine if it is gone."""
    with suppress(WeirError):
        ask_v2(place.access, "DELETE", f"{topic_path(selection_topic(replay), 'partitions')}?force=true")
    with suppress(WeirError):
        forget(place.access, _sink(replay))


def _sink(replay: Replay) -> str:
    return f"replay-{replay.id}"


def _partitions(place: WeirCluster, topic: TopicName) -> int:
    with Cluster(connection(place.options)) as cluster:
        return len(cluster.partitions([kafka_name(topic)]))


def _versions(place: WeirCluster, topic: TopicName) -> dict[int, tuple[str, str]]:
    """By their numbers, what a topic's schemas are; as far as one may see them."""
    try:
        return {one.version: (one.kind, one.definition) for one in schemas_by(place.access, topic)}
    except (SchemaNotFoundError, NotAuthorisedError, TopicNotFoundError):
        return {}


def _names(topic: TopicName) -> list[str]:
    """A topic as dead letters may name it."""
    return [str(topic), topic.local]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _header(name: str) -> str:
    """The text of a header, in SQL; null if there is none."""
    return f"CAST(get(filter(__headers, h -> h.key = {_quoted(name)}), 0).value AS string)"


def _header_map() -> str:
    """Headers by their names, as texts; of several with one name the first."""
    keys = f"array_distinct(transform(coalesce(__headers, {_EMPTY}), h -> h.key))"
    return f"map_from_arrays({keys}, transform({keys}, k -> {_first('k')}))"


def _first(key: str) -> str:
    return f"CAST(get(filter(__headers, h -> h.key = {key}), 0).value AS string)"


def _headers(replay: Replay, unfit: Sequence[str]) -> str:
    """Those that the message had, without what was told of its death, of its delay, and of a replay before; and
    where it comes from."""
    gone = ", ".join(map(_quoted, (*NAMES, *HEADERS, *_DELAYS, *unfit)))
    told = {
        ID_HEADER: _quoted(replay.id),
        TOPIC_HEADER: _quoted(str(replay.topic)),
        PARTITION_HEADER: "CAST(__partition AS string)",
        OFFSET_HEADER: "CAST(__offset AS string)",
    }
    if replay.subscription is not None:
        told[SUBSCRIPTION_HEADER] = _quoted(replay.subscription)
    more = ", ".join(
        f"named_struct('key', {_quoted(name)}, 'value', CAST({value} AS binary))" for name, value in told.items()
    )
    return f"concat(filter(coalesce(__headers, {_EMPTY}), h -> NOT h.key IN ({gone})), array({more}))"
