"""The loop of a worker: messages come, the function is called, and what came of them is committed at once.

The process that runs one function, light: `python -m weir.functions.worker`, started by its runner.
"""

import logging
import os
import signal
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import click

from weir.client import functions as rest
from weir.client.admin import Access
from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.connection import RETRIABLE
from weir.client.kafka.fetch import ends, starts
from weir.client.kafka.groups import commit as commit_positions
from weir.client.kafka.groups import described, is_of
from weir.functions import micro_batch
from weir.functions.executor_pool import Executors, Outcome, now_ms
from weir.functions.executor_process import end_with_parent
from weir.functions.executor_protocol import Item, LogLine, Result, Setup
from weir.functions.input import KeyedState, Read, Reader
from weir.functions.micro_batch import log_topic_of, setup_of
from weir.functions.options import FunctionOptions, from_text
from weir.functions.output import Committer, LogTopic, Routes
from weir.functions.stats import Counts, Origin, Reports
from weir.functions.subscriptions import Place, kafka_name, leave_dropped, subscribe
from weir.functions.values import LaterVersions, Values
from weir.model.definitions import Function
from weir.model.errors import (
    BrokerError,
    FunctionError,
    InvalidNameError,
    InvalidRecordError,
    MessageTooLargeError,
    NotAuthorisedError,
    OffsetTrimmedError,
    TopicNotFoundError,
    WeirError,
)
from weir.model.topics import TopicName
from weir.wire.kafka.records import Record

log = logging.getLogger(__name__)

_LOOK_S = 0.1
#: How often new partitions of the inputs are looked for.
_PARTITIONS_S = 10.0
#: About so many bytes of messages are worked on at once.
_MOST_BYTES = 32 * 1024 * 1024
#: What a broker says of a record that it will never take; and of a topic that is none. For the function's own
#: output the worker waits instead.
_UNFIT = (MessageTooLargeError, InvalidRecordError)
_NO_TOPIC = (TopicNotFoundError, InvalidNameError, NotAuthorisedError)


@dataclass(slots=True)
class Entry:
    """A message on its way: where it was read, and when it came."""

    partition: Partition
    offset: int
    item: Item
    arrived: float


class _RefusedError(Exception):
    """Something that the function sent is taken by no broker; nothing is stored of what went with it."""


class Work:
    """One function, from `open` on; `step` after `step`, until it is closed."""

    def __init__(
        self, place: Place, function: Function, options: FunctionOptions, stopping: Callable[[], bool]
    ) -> None:
        self._place = place
        self._function = function
        self._options = options
        self._policy = options.policy
        self._stopping = stopping
        self.counts = Counts()
        self._cluster = Cluster(place.kafka)
        self._committer = Committer(self._cluster, transactional_id(function), function.subscription)
        self._routes = Routes(self._cluster)
        self._state = KeyedState()
        self._logs = LogTopic(place.kafka, function, log_topic_of(function, options))
        self._values: dict[str, Values] = {}
        self._later = LaterVersions()
        self._executors = Executors(self._setup(), options.parallelism, timeout_s=options.timeout_s or None)
        self._positions: dict[Partition, int] = {}
        self._ends: dict[Partition, int] = {}
        self._names: dict[str, TopicName] = {}
        self._partitioned: set[str] = set()
        self._reader: Reader | None = None
        self._waiting: deque[Read] = deque()
        self._looked = 0.0
        self._letters: set[TopicName] = set()
        #: Of messages by themselves: why what the function sent for them was refused.
        self._refused: dict[tuple[Partition, int], str] = {}

    # --- the beginning ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """FunctionError if the code cannot be loaded. Whoever ran the function before can commit nothing more."""
        self._executors.start()
        self._logs.say(self._executors.logs)
        self._executors.logs = []
        function = self._function
        inputs = subscribe(self._place.access, function)
        self._committer.topic_ids |= {kafka_name(topic): found for topic, found in inputs.items()}
        for topic in (*function.inputs, function.retry_topic):
            self._names[kafka_name(topic)] = topic
            if self._place.partitioned(topic):
                self._partitioned.add(str(topic))
        self._committer.take_over()
        leave_dropped(self._place.access, function)
        if self._options.stateful:
            self._state.load(self._cluster, kafka_name(function.state_topic))
            self._count_state()
        self._find_partitions()

    def _setup(self) -> Setup:
        function, options = self._function, self._options
        topics = [*function.inputs, *([] if function.output is None else [function.output])]
        schemas = {str(topic): self._place.schemas(topic) for topic in topics}
        self._values = {topic: Values(topic, versions) for topic, versions in schemas.items()}
        return setup_of(function, options, schemas, sliced=True)

    def _find_partitions(self) -> None:
        """Those of all inputs, each from where the subscription is; and a reader, if there are new ones."""
        self._looked = time.monotonic()
        self._routes.look_anew()
        found = self._cluster.partitions(list(self._names))
        self._check_same_topics()
        new = [partition for partition in found if partition not in self._positions]
        if not new:
            return
        group, ids = self._function.subscription, self._committer.topic_ids
        told = described(self._cluster, group, new, stable=True)
        late = {one.topic for one, (_, said) in told.items() if not is_of(said, ids[one.topic])}
        for topic in sorted(late):
            log.warning("%s was deleted and created again; the function reads it from its start", topic)
        known = {one: offset for one, (offset, _) in told.items() if one.topic not in late}
        fresh = [partition for partition in new if partition not in known]
        if fresh:
            # Partitions that came later are read from their beginning, whatever the function began with.
            first = not self._positions and self._options.start == "latest"
            at_end = ends(self._cluster, [one for one in fresh if one.topic not in late]) if first else {}
            begin = starts(self._cluster, [one for one in fresh if one not in at_end]) | at_end
            commit_positions(self._cluster, group, begin, ids=ids)
            known |= begin
        self._positions |= known
        self._read_on()

    def _check_same_topics(self) -> None:
        """FunctionError if an input was deleted and created again. The next worker reads the new topic."""
        known, now = self._committer.topic_ids, self._cluster.topic_ids
        for topic in self._names:
            if known.setdefault(topic, now[topic]) != now[topic]:
                raise FunctionError(
                    f"the input {topic} was deleted and created again: the function starts again, and reads the "
                    "new topic from its start"
                )

    def _read_on(self) -> None:
        """From where it is committed."""
        if self._reader is not None:
            self._reader.close()
        self._waiting.clear()
        self._reader = Reader(self._place.kafka, self._positions, self._committer.topic_ids)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._executors.close()
        self._logs.close()
        self._cluster.close()

    # --- a step -------------------------------------------------------------------------------------------------

    def step(self, patience_s: float = _LOOK_S) -> bool:
        """What has come, or False if nothing did for a moment."""
        if time.monotonic() - self._looked > _PARTITIONS_S:
            self._find_partitions()
        try:
            reads = self._gather(patience_s)
        except OffsetTrimmedError as gone:
            log.warning("%s: %s; it goes on with what is there", self._function.name.local, gone)
            self._skip_trimmed()
            return False
        except RETRIABLE as failure:
            log.info("%s reads anew: %s", self._function.name.local, failure)
            self._cluster.close()
            self._cluster.retry(self._read_on)
            return False
        if not reads:
            return False
        entries = [entry for read in reads for entry in self._entries(read)]
        positions = {read.partition: read.next_offset for read in reads}
        self._ends |= {read.partition: read.end_offset for read in reads}
        self._count_lag()
        if entries:
            self._know_schemas(entries)
            self._process(entries, positions)
        else:  # markers, and what was aborted
            self._committer.commit({}, positions)
            self._positions |= positions
        self._count_lag()
        return True

    def _gather(self, patience_s: float) -> list[Read]:
        """Up to a batch of messages. Of what came together, the rest waits for the next step."""
        assert self._reader is not None
        options, count, size = self._options, 0, 0
        found: list[Read] = []
        until = 0.0
        while count < options.batch_messages and size < _MOST_BYTES:
            if self._waiting:
                read: Read | None = self._waiting.popleft()
            else:
                left = until - time.monotonic() if found else patience_s
                read = self._reader.get(max(0.0, left))
            if read is None:
                if found and time.monotonic() >= until:
                    break
                if not found:
                    return []
                continue
            if not found:
                until = time.monotonic() + options.linger_ms / 1000
            room = _fitting(read, options.batch_messages - count, _MOST_BYTES - size)
            if len(read.records) > room:
                first, rest = _split(read, room)
                self._waiting.appendleft(rest)
                read = first
            found.append(read)
            count += len(read.records)
            size += sum(map(_size, read.records))
        return found

    def _entries(self, read: Read) -> list[Entry]:
        topic, arrived = self._names[read.partition.topic], time.monotonic()
        index, waited = read.partition.index, topic == self._function.retry_topic
        return [
            Entry(
                read.partition, offset, micro_batch.item_of(record, topic, index, offset, waited=waited), arrived
            )
            for offset, record in read.records
        ]

    def _know_schemas(self, entries: Sequence[Entry]) -> None:
        """A version that was registered while it ran is learnt before its first message is read."""
        if self._later.wanted((entry.item for entry in entries), self._values):
            self._executors.renew(self._setup())

    def _process(self, entries: Sequence[Entry], positions: Mapping[Partition, int]) -> None:
        """All at once; one by one, if something is refused that came of one of them."""
        try:
            self._together(entries, positions)
        except _RefusedError as refused:
            log.info("%s: %s", self._function.name.local, refused)
            self._committer.take_over()
            for entry in entries:
                if entry.offset >= self._positions[entry.partition]:
                    self._alone(entry)
                if self._stopping():
                    return
            self._committer.commit({}, positions)
            self._positions |= positions

    def _alone(self, entry: Entry) -> None:
        while entry.offset >= self._positions[entry.partition] and not self._stopping():
            try:
                self._together([entry], _behind([entry]))
            except _RefusedError as refused:
                self._committer.take_over()
                self._refused[entry.partition, entry.offset] = str(refused)

    def _call(self, entries: Sequence[Entry]) -> Outcome:
        if len(entries) == 1 and (at := (entries[0].partition, entries[0].offset)) in self._refused:
            return Outcome([Result(error=self._refused.pop(at))], {}, [])
        return self._executors.run([entry.item for entry in entries], self._state.values)

    def _together(self, entries: Sequence[Entry], positions: Mapping[Partition, int]) -> None:
        while entries:
            outcome = self._call(entries)
            bad = next((at for at, result in enumerate(outcome.results) if result.error is not None), None)
            if bad is None or not self._options.ordered:
                some, entries = entries[: len(outcome.results)], entries[len(outcome.results) :]
                self._commit(some, outcome, _behind(some) if entries else positions)
                if self._stopping():  # what is left is not committed, and comes again
                    return
                continue
            if bad:  # what was before it, again: without what came behind it
                entries = self._before(entries, bad)
                continue
            failed = entries[0]
            if self._policy.is_over(failed.item.attempt):
                self._commit(entries[:1], Outcome(outcome.results[:1], {}, outcome.logs), _behind(entries[:1]))
                entries = entries[1:]
                continue
            self._say_failed(failed.item, outcome)
            self._pause(self._policy.delay_ms(failed.item.attempt))
            failed.item.attempt += 1
            if self._stopping():  # it is not committed, and comes again
                return
        self._positions |= positions

    def _before(self, entries: Sequence[Entry], bad: int) -> Sequence[Entry]:
        """Commit what stands before the one that failed, and go on with that one."""
        outcome = self._call(entries[:bad])
        some = entries[: len(outcome.results)]
        good = next((at for at, one in enumerate(outcome.results) if one.error is not None), len(some))
        if good < len(some):  # another one, this time
            return self._before(entries, good) if good else entries
        self._commit(some, outcome, _behind(some))
        return entries[len(some) :]

    def _pause(self, wait_ms: int) -> None:
        until = time.monotonic() + wait_ms / 1000
        while not self._stopping() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_S))

    # --- what is stored -----------------------------------------------------------------------------------------

    def _commit(self, entries: Sequence[Entry], outcome: Outcome, positions: Mapping[Partition, int]) -> None:
        records: dict[Partition, list[Record]] = defaultdict(list)
        self._routes.next_turn()
        output = None if self._function.output is None else kafka_name(self._function.output)
        sent, elsewhere = 0, set[Partition]()
        lines = list(outcome.logs)
        for entry, result in zip(entries, outcome.results, strict=True):
            if result.error is not None:
                partition, record = self._failed(entry.item, result.error)
                records[partition].append(record)
                lines.append(_failure(entry.item, result.error))
                continue
            for out in result.outs:
                topic = output if out.topic is None else kafka_name(TopicName.parse(out.topic))
                if topic is not None:
                    headers = [(name.encode(), value) for name, value in out.headers]
                    record = Record(0, out.timestamp, out.key, out.value, headers)
                    partition = self._route(topic, out.key, own=topic == output)
                    records[partition].append(record)
                    if topic != output:
                        elsewhere.add(partition)
                    sent += 1
        state_topic = kafka_name(self._function.state_topic)
        for partition, record in self._state.records(state_topic, outcome.states, now_ms()):
            records[partition].append(record)
        try:
            self._committer.commit(records, positions)
        except _UNFIT as unfit:
            if not sent and not outcome.states:  # what is said of failures does not fail again
                raise
            raise _RefusedError(str(unfit)) from unfit
        except (BrokerError, *_NO_TOPIC) as refused:
            if not any(_is_about(refused, partition) for partition in elsewhere):
                raise
            raise _RefusedError(str(refused)) from refused
        self._logs.say(lines)
        self._state.hold(outcome.states)
        self._positions |= positions
        self._count(entries, sent)

    def _route(self, topic: str, key: bytes | None, *, own: bool) -> Partition:
        try:
            return self._routes.of(topic, key)
        except _NO_TOPIC as refused:
            if own:
                raise
            raise _RefusedError(str(refused)) from refused

    def _failed(self, item: Item, error: str) -> tuple[Partition, Record]:
        """To be tried again later, or given up."""
        self.counts.failed += 1
        self.counts.error = error
        if not self._policy.is_over(item.attempt):
            self.counts.retried += 1
            return Partition(kafka_name(self._function.retry_topic), 0), micro_batch.again(item, self._policy)
        self.counts.dead += 1
        topic = micro_batch.dead_letter_topic(item, self._function, self._policy)
        if topic not in self._letters:
            self._place.ensure_subscription(topic, "queue", earliest=True)
            self._letters.add(topic)
        record = micro_batch.dead_letter(
            item, self._function, error, now_ms(), partitioned=item.topic in self._partitioned
        )
        return self._routes.of(kafka_name(topic), item.key), record

    def _say_failed(self, item: Item, outcome: Outcome) -> None:
        error = outcome.results[0].error or ""
        self.counts.failed += 1
        self.counts.retried += 1
        self.counts.error = error
        self._logs.say([*outcome.logs, _failure(item, error)])

    def _count(self, entries: Sequence[Entry], sent: int) -> None:
        counts, now = self.counts, time.monotonic()
        counts.received += len(entries)
        counts.sent += sent
        for entry in entries:
            counts.took(now - entry.arrived)
        self._count_state()
        self._count_lag()

    def _count_lag(self) -> None:
        self.counts.lag = sum(max(0, end - self._positions[one]) for one, end in self._ends.items())

    def _count_state(self) -> None:
        self.counts.state_keys, self.counts.state_bytes = len(self._state.values), self._state.bytes

    def _skip_trimmed(self) -> None:
        """Where retention has taken what was not read."""
        oldest = starts(self._cluster, list(self._positions))
        self._positions = {one: max(at, oldest[one]) for one, at in self._positions.items()}
        self._read_on()


def transactional_id(function: Function) -> str:
    return f"weir-fn/{function.id}"


def _split(read: Read, count: int) -> tuple[Read, Read]:
    """The first records, and the others."""
    first, rest = read.records[:count], read.records[count:]
    return (
        Read(read.partition, first, first[-1][0] + 1, read.end_offset),
        Read(read.partition, rest, read.next_offset, read.end_offset),
    )


def _behind(entries: Sequence[Entry]) -> dict[Partition, int]:
    return {entry.partition: entry.offset + 1 for entry in entries}


def _size(record: tuple[int, Record]) -> int:
    return len(record[1].key or b"") + len(record[1].value or b"")


def _fitting(read: Read, count: int, size: int) -> int:
    """How many of its records are taken, one at the least."""
    for at, record in enumerate(read.records[:count]):
        size -= _size(record)
        if size < 0:
            return max(1, at)
    return count


def _is_about(refused: WeirError, partition: Partition) -> bool:
    """Whether a broker refused what was sent there."""
    return str(refused.what).startswith(f"{partition}: ")


def _failure(item: Item, error: str) -> LogLine:
    text = f"attempt {item.attempt} failed: {error}"
    return LogLine(now_ms(), "ERROR", "weir", text, item.topic, item.partition, item.offset)


#: How long a broker may be away.
_PATIENCE_S = 60.0
#: How often it is looked whether it shall stop, where nothing comes.
_WORKER_LOOK_S = 0.5


@click.command()
@click.argument("name")
@click.option("--url", required=True)
@click.option("--ca")
@click.option("--cert")
@click.option("--cert-key")
@click.option("--kafka")
@click.option("--restarts", default=0)
@click.option("--level", default="WARNING")
def main(
    *,
    name: str,
    url: str,
    ca: str | None,
    cert: str | None,
    cert_key: str | None,
    kafka: str | None,
    restarts: int,
    level: str,
) -> None:
    """Run a function until a signal comes; then what is under way is finished."""
    logging.basicConfig(level=level, format="%(levelname)s %(message)s")
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda found, _frame: stopped.append(found))
    end_with_parent()
    access = Access(url, os.environ.get("WEIR_TOKEN"), ca, _PATIENCE_S, cert, cert_key)
    try:
        serve(access, TopicName.parse(name), kafka, restarts, stopped)
    except WeirError as failure:
        click.echo(str(failure), err=True)
        sys.exit(1)


def serve(access: Access, name: TopicName, kafka: str | None, restarts: int, stopped: list[int]) -> None:
    place = Place.find(access, kafka)
    function = rest.get_function(access, name).function
    options, state = from_text(function.options), ["starting"]
    work = Work(place, function, options, lambda: bool(stopped))
    origin = Origin.here(options.parallelism, restarts)
    reports = Reports(access, function, lambda: work.counts.stats(function, state[0], origin))
    try:
        work.open()
        state[0] = "running"
        reports.tell()
        while not stopped:
            work.step(_WORKER_LOOK_S)
        state[0] = "stopped"
    except BaseException:
        state[0] = "failed"
        raise
    finally:
        work.close()
        reports.close()


if __name__ == "__main__":
    main()
