"""A stream as a running query of Spark: from its definition to its topic, each micro-batch exactly once.

How far a running query is, in a few numbers; and the cause of its failure, in a line.

What waits for a stream, running or not: by its checkpoint, and by where its topics end.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from weir.client.admin import Access, ask_v2, join, topic_path
from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.fetch import ends, starts
from weir.client.schemas import kafka_name
from weir.client.sink_epochs import forget
from weir.model.definitions import SqlStream, StreamProgress, check_query_size, table_name
from weir.model.errors import BrokerError, InvalidNameError, NotAllowedError, SqlError, WeirError
from weir.model.topics import TopicName
from weir.spark.options import connection, from_json, ids_of, recreated
from weir.spark.sql.insert import Messages, messages
from weir.spark.sql.parsing import output_mode, poison_mode
from weir.spark.sql.plan_safety import check_stream
from weir.spark.tables.names import WeirCluster
from weir.spark.tables.query import DEADLETTER, Query
from weir.spark.tables.topic_tables import Tables, as_sent

#: How often a stream looks for new messages.
_TRIGGER = "500 milliseconds"
#: What Spark says of a query whose sources are not there yet; how long they are waited for, and how often asked.
_BEGINNING = "Initializing"
_SOURCES_S, _LOOK_S = 5.0, 0.05
_READ = ("maxOffsetsPerTrigger", "failOnDataLoss")
_MOST_PARTITIONS = 1_000


class RunningStream(Protocol):
    """What the runner wants of a query."""

    @property
    def isActive(self) -> bool: ...

    @property
    def recentProgress(self) -> Sequence[Any]: ...

    def exception(self) -> Exception | None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StreamWithDeadLetters:
    """Both run, or neither."""

    stream: RunningStream
    dead_letters: RunningStream

    @property
    def isActive(self) -> bool:
        return self.stream.isActive and self.dead_letters.isActive

    @property
    def recentProgress(self) -> Sequence[Any]:
        return self.stream.recentProgress

    def exception(self) -> Exception | None:
        return self.stream.exception() or self.dead_letters.exception()

    def stop(self) -> None:
        self.stream.stop()
        self.dead_letters.stop()


def mode_of(query: Query, options: Mapping[str, str]) -> str:
    """Groups without a watermark never end, so their rows are written again as they change; else each row once."""
    return output_mode(options) or ("update" if query.aggregates and not query.watermarks else "append")


def prepare(
    tables: Tables, place: WeirCluster, name: TopicName, query: Query, options: Mapping[str, str]
) -> Messages:
    """Plan the query, and see to it that its topic exists and has its schema. SqlError if it can be no stream."""
    found = plan(tables, place, name, query, options)
    make_topic(place, name, options.get("partitions"))
    if found.schema is not None:
        register_schema(place.access, name, found.schema)
    return found


def plan(
    tables: Tables, place: WeirCluster, name: TopicName, query: Query, options: Mapping[str, str]
) -> Messages:
    """What a stream would write; nothing is made. SqlError if it can be no stream."""
    sources = tables.topics(query)
    if not sources:
        raise SqlError("a stream reads topics, and this query names none")
    if name in sources.values():
        raise SqlError(f"{table_name(name)} would read what it writes", hint="choose another name")
    if poison_mode(options) == DEADLETTER and dead_letter_topic(name, options) in (name, *sources.values()):
        raise SqlError("the topic of the dead letters is one of the stream's own", hint="choose another name")
    read = {
        **_read(options),
        "mode": poison_mode(options),
        "subscription": subscription_of(name),
        **as_sent(query),
    }
    frame = tables.frame(query, streaming=True, options=read)
    check_stream(frame)
    found = messages(frame, name.local)
    if found.schema is not None:
        check_registered(place.access, name, found.schema)
    return found


def _read(options: Mapping[str, str]) -> dict[str, str]:
    read = {option: options[option] for option in _READ if option in options}
    return {**read, "startingOffsets": options.get("start", "earliest")}


def start(tables: Tables, place: WeirCluster, stream: SqlStream, checkpoint: str) -> RunningStream:
    """Let it run from where its checkpoint says; and beside it what writes its dead letters, if it has any."""
    running = _start(tables, place, stream, checkpoint)
    if poison_mode(stream.options) != DEADLETTER:
        return running
    _wait_for_sources(running)
    try:
        return StreamWithDeadLetters(running, start_dead_letters(tables, place, stream, checkpoint))
    except BaseException:
        running.stop()
        raise


def _wait_for_sources(query: StreamingQuery) -> None:
    """Each query starts a Python process for its source, which has 10 s to load PySpark and come to Spark: two
    at once hinder each other on a busy machine. Not for long: who waits here is who renews the lease."""
    deadline = time.monotonic() + _SOURCES_S
    while query.isActive and time.monotonic() < deadline:
        if not str(query.status["message"]).startswith(_BEGINNING):
            return
        time.sleep(_LOOK_S)


def _start(tables: Tables, place: WeirCluster, stream: SqlStream, checkpoint: str) -> StreamingQuery:
    check_query_size(stream.sql)  # an earlier release may have stored it, and checked less
    query = Query.of(stream.sql, safe=True)
    for topic in tables.topics(query).values():
        if topic not in stream.sources:
            raise SqlError(f"{table_name(topic)} is not among the sources of {table_name(stream.name)}")
    written = prepare(tables, place, stream.name, query, stream.options)
    mode = mode_of(query, stream.options)
    sink = {**place.options, "topic": kafka_name(stream.name), "sinkId": sink_of(stream)}
    writer = (
        written.frame.writeStream.queryName(stream.id)
        .outputMode(mode)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=stream.options.get("trigger", _TRIGGER))
    )
    if mode == "append":
        return writer.format("weir").options(**sink).start()
    # Spark lets a sink written in Python take rows in append mode only; a batch of its own it takes in any.
    return writer.foreachBatch(_write_epoch(sink)).start()


def _write_epoch(sink: Mapping[str, str]) -> Callable[[DataFrame, int], None]:
    def write(frame: DataFrame, epoch: int) -> None:
        frame.write.format("weir").options(**sink, sinkEpoch=str(epoch)).mode("append").save()

    return write


def start_dead_letters(tables: Tables, place: WeirCluster, stream: SqlStream, checkpoint: str) -> StreamingQuery:
    """What the stream leaves out, each once, into the topic of its dead letters."""
    name, read = dead_letter_topic(stream.name, stream.options), _read(stream.options)
    read["subscription"] = _dead_subscription(stream.name)
    make_topic(place, name, None)
    frames = [tables.dead_letters(source, read) for source in stream.sources]
    frame = frames[0]
    for one in frames[1:]:
        frame = frame.unionByName(one)
    sink = {**place.options, "topic": kafka_name(name), "sinkId": _dead_sink(stream)}
    return (
        frame.writeStream.queryName(f"{stream.id}-dead-letters")
        .outputMode("append")
        .option("checkpointLocation", f"{checkpoint}/dead-letters")
        .trigger(processingTime=stream.options.get("trigger", _TRIGGER))
        .format("weir")
        .options(**sink)
        .start()
    )


def dead_letter_topic(name: TopicName, options: Mapping[str, str]) -> TopicName:
    """In the stream's own namespace: its runner may write everywhere, and whoever defined it may not."""
    given = options.get("dead_letter_topic", f"{name.local}-DLQ")
    try:
        found = TopicName.parse(given if "/" in given else f"{name.namespace}/{given}")
    except InvalidNameError as bad:
        raise SqlError(f"dead_letter_topic is {given!r}: {bad.what}", hint=bad.hint) from None
    if found.namespace != name.namespace or found.partition is not None:
        raise SqlError(f"dead_letter_topic is {given!r}", hint=f"name a topic of {name.namespace}")
    return found


def clean_up(place: WeirCluster, stream: SqlStream) -> None:
    """Forget what a dropped stream left at the broker. Its topic stays."""
    for sink in (sink_of(stream), _dead_sink(stream)):
        with suppress(WeirError):
            forget(place.access, sink)
    for source in stream.sources:
        for subscription in (subscription_of(stream.name), _dead_subscription(stream.name)):
            with suppress(WeirError):
                path = topic_path(source, "subscription", subscription)
                ask_v2(place.access, "DELETE", f"{path}?force=true")


def sink_of(stream: SqlStream) -> str:
    return f"stream-{stream.id}"


def _dead_sink(stream: SqlStream) -> str:
    return f"{sink_of(stream)}-dead"


def _dead_subscription(name: TopicName) -> str:
    return f"{subscription_of(name)}-DLQ"


def subscription_of(name: TopicName) -> str:
    """Under which the sources show how far the stream is."""
    return f"stream-{table_name(name)}"  # as SqlStream.subscription


def make_topic(place: WeirCluster, name: TopicName, partitions: str | None) -> None:
    if partitions is not None:
        _check_partitions(partitions)
        with suppress(NotAllowedError):  # it exists, and keeps its partitions
            ask_v2(place.access, "PUT", topic_path(name, "partitions"), int(partitions))
    with Cluster(connection(place.options)) as cluster:
        cluster.partitions([kafka_name(name)], create=True)


def _check_partitions(given: str) -> None:
    """The runner makes the topic, with more rights than the role that has written this."""
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= _MOST_PARTITIONS:
        raise SqlError(f"partitions is {given[:20]!r}", hint=f"write a number from 1 to {_MOST_PARTITIONS}")


def register_schema(access: Access, name: TopicName, schema: str) -> None:
    if _is_registered(access, name, schema):
        return
    try:
        ask_v2(access, "POST", _schema_path(name, "schema"), _body(schema))
    except BrokerError as refused:
        raise _unfit(name, refused.what) from None


def check_registered(access: Access, name: TopicName, schema: str) -> None:
    """Whether it would be taken, as far as the registry says so before."""
    if _is_registered(access, name, schema):
        return
    found: Any = None
    with suppress(BrokerError):  # there is no such topic yet
        found = ask_v2(access, "POST", _schema_path(name, "compatibility"), _body(schema))
    if isinstance(found, dict) and False in (found.get("isCompatibility"), found.get("compatibility")):
        raise _unfit(name, "they are not compatible")


def _is_registered(access: Access, name: TopicName, schema: str) -> bool:
    with suppress(BrokerError):
        return bool(
            _fields_of(ask_v2(access, "GET", _schema_path(name, "schema"))) == json.loads(schema)["fields"]
        )
    return False


def _schema_path(name: TopicName, what: str) -> str:
    return join("schemas", name.namespace.tenant, name.namespace.name, name.local, what)


def _body(schema: str) -> dict[str, Any]:
    return {"type": "JSON", "schema": schema, "properties": {}}


def _unfit(name: TopicName, why: str) -> SqlError:
    return SqlError(
        f"the columns do not go with the schema that {table_name(name)} has: {why}",
        hint="choose another name, or delete the schema: weir schemas delete",
    )


def _fields_of(answer: Any) -> Any:
    """The fields of a JSON schema as the registry tells it."""
    if not isinstance(answer, dict) or answer.get("type") != "JSON":
        return None
    try:
        return json.loads(answer["data"])["fields"]
    except (KeyError, ValueError, TypeError):
        return None


def last_batch(checkpoint: Path) -> int:
    """The last micro-batch that Spark has finished there; -1 if none."""
    folder = checkpoint / "commits"
    done = [int(file.name) for file in folder.iterdir() if file.name.isdigit()] if folder.is_dir() else []
    return max(done, default=-1)


def waiting(place: WeirCluster, stream: SqlStream, checkpoint: Path) -> int:
    """Messages that it has not processed yet."""
    return unread(place, stream.sources, checkpoint, latest_first=stream.options.get("start") == "latest")


def unread(place: WeirCluster, topics: Sequence[TopicName], checkpoint: Path, *, latest_first: bool) -> int:
    """Messages of these topics that the query of this checkpoint has not processed yet. `latest_first`: a new one
    begins where the topics end."""
    batch = last_batch(checkpoint)
    read = _read_up_to(checkpoint / "offsets" / str(batch)) if batch >= 0 else []
    names = list(dict.fromkeys(kafka_name(topic) for topic in topics))
    with Cluster(connection(place.options)) as cluster:
        partitions = cluster.partitions(names)
        latest = ends(cluster, partitions, committed=True)
        oldest = starts(cluster, partitions)
        ids = cluster.topic_ids
    if not read and latest_first:
        return 0
    return behind([_of_topics(source, ids) for source in read], oldest, latest)


def behind(
    read: Sequence[Mapping[Partition, int]], oldest: Mapping[Partition, int], latest: Mapping[Partition, int]
) -> int:
    """Messages between where the sources of a query have read up to, and where the partitions end. A topic that
    is read twice waits once, for whoever is slower. A partition that was never read waits from its oldest message
    on; what was trimmed does not wait any more."""
    found = 0
    for partition, end in latest.items():
        places = [source[partition] for source in read if partition in source]
        found += max(0, end - max(min(places, default=0), oldest.get(partition, 0)))
    return found


def _of_topics(source: Mapping[str, Mapping[str, Any]], ids: Mapping[str, str]) -> dict[Partition, int]:
    """The offsets of a source, without those in topics that were created again: nothing of these was read."""
    gone = recreated(ids_of(source), ids)
    return {partition: offset for partition, offset in from_json(source).items() if partition.topic not in gone}


def _read_up_to(file: Path) -> list[dict[str, dict[str, Any]]]:
    """Where a micro-batch ended in each of its sources, as `to_json` writes it: lines of JSON, among others."""
    found = [_offsets(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [one for one in found if one]


def _offsets(line: str) -> dict[str, dict[str, Any]]:
    """Empty if the line has no offsets."""
    try:
        told: dict[str, dict[str, Any]] = json.loads(line)
        return told if from_json(told) and all(type(at) is int for at in from_json(told).values()) else {}
    except (ValueError, TypeError, AttributeError):
        return {}


_OWN_ERRORS = "weir.model.errors."
_CODES = re.compile(r"\.? SQLSTATE: \w+(?:;? ?\(?line (\d+),? pos (\d+)\)?)?;?$")
#: What stands before an error of Java's that Spark has no words for.
_CALLED = "An error occurred while calling "
#: How Python's stacks begin, and how they end.
_TRACE, _RAISED = "Traceback (most recent call last):", re.compile(r"[\w.]*(Error|Exception|Interrupt)\b")
#: What stands before a cause in a stack of Java's; and the classes of exceptions before what they say.
_CAUSED_BY, _CLASSES = "Caused by: ", re.compile(r"^(?:[\w.$]+(?:Exception|Error): )+")
_MOST_CAUSES = 20


class HasProgress(Protocol):
    """A query of Spark's, as far as it is looked at here."""

    @property
    def recentProgress(self) -> Sequence[Any]: ...


@dataclass(slots=True)
class Meter:
    """What a stream has read since it was first started here."""

    rows: int = 0
    batch: int = -1
    #: When it was last looked at, and how many rows there were then.
    looked_s: float = 0.0
    looked_rows: int = 0

    def again(self, batch: int) -> "Meter":
        """For the same stream in a new query, whose last batch was this."""
        return Meter(rows=self.rows, batch=batch, looked_rows=self.rows)

    def look(self, query: HasProgress, stream_id: str, now_s: float, lag: int = 0) -> StreamProgress:
        told = [json.loads(one.json) for one in query.recentProgress]
        for one in told:
            # An idle query tells of the batch that is to come, too.
            if one["batchId"] > self.batch and "addBatch" in one.get("durationMs", {}):
                self.batch = one["batchId"]
                self.rows += one["numInputRows"]
        elapsed = now_s - self.looked_s
        rate = (self.rows - self.looked_rows) / elapsed if self.looked_s and elapsed > 0 else 0.0
        self.looked_s, self.looked_rows = now_s, self.rows
        last = told[-1] if told else {}
        operators = last.get("stateOperators", ())
        return StreamProgress(
            stream_id,
            "running",
            rows_per_second=round(max(rate, 0.0), 1),
            rows=self.rows,
            lag=lag,
            state_rows=_total(operators, "numRowsTotal"),
            state_bytes=_total(operators, "memoryUsedBytes"),
            batch=self.batch,
            batch_ms=int(last.get("durationMs", {}).get("triggerExecution", 0)),
        )


def _total(operators: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(max(0, int(one.get(name, 0))) for one in operators)


def told(failure: BaseException) -> str:
    """What failed and its root cause, without the stacks of three programs."""
    if isinstance(failure, WeirError):
        return str(failure)
    texts = [_lines(one) for one in _chain(failure)]
    lines = [line for text in texts for line in text if _OWN_ERRORS in line]
    own = [line.partition(_OWN_ERRORS)[2].partition(": ")[2] for line in lines]
    if own and own[-1]:
        return own[-1]
    said, cause = _sentence(texts[0]) or type(failure).__name__, _root_cause(texts)
    return said if _CLASSES.sub("", cause) in said else f"{said}; caused by {cause}"


def failure_text(failure: BaseException) -> str:
    """All that a failure and its causes say."""
    return "\n".join(line for one in _chain(failure) for line in _lines(one))


def _chain(failure: BaseException) -> list[BaseException]:
    """The failure and its causes; those of exceptions of Java are in an attribute of PySpark's."""
    found, one = [failure], failure
    while len(found) < _MOST_CAUSES:
        cause = getattr(one, "_cause", None) or one.__cause__
        if not isinstance(cause, BaseException) or any(cause is known for known in found):
            break
        found.append(one := cause)
    return found


def _lines(failure: BaseException) -> list[str]:
    try:
        text = str(failure)
    except Exception:  # an exception of Java asks its JVM, which may have ended
        text = type(failure).__name__
    return [line.strip() for line in text.splitlines() if line.strip()]


def _root_cause(texts: Sequence[list[str]]) -> str:
    """The innermost cause in a line; empty if none is named."""
    for lines in reversed(texts):
        behind = [at for at, line in enumerate(lines) if line.startswith(_CAUSED_BY)]
        if behind:
            return _sentence([lines[behind[-1]].removeprefix(_CAUSED_BY), *lines[behind[-1] + 1 :]])
    return _sentence(texts[-1]) if len(texts) > 1 else ""


def _sentence(lines: Sequence[str]) -> str:
    """What the first line says, without what is for programs; of a stack of Python's, the exception."""
    first = lines[0] if lines else ""
    if first.startswith(_CALLED) and len(lines) > 1:
        first = lines[1].lstrip(": ")
    if first.endswith(_TRACE):
        died_of = [line for line in lines[1:] if _RAISED.match(line)]
        first = first.removesuffix(_TRACE) + (died_of[-1] if died_of else "")
    # Spark's error classes stand in brackets before what it says, and codes for programs behind it.
    said = first.partition("] ")[2] or first if first.startswith("[") else first
    return _CODES.sub(lambda found: f" (line {found[1]}, column {int(found[2]) + 1})" if found[1] else "", said)
