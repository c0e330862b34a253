"""A function over rows of a micro-batch: what fails is tried again in its place, and given up at last.

Plain Python, which Spark's tasks run: they know no retry topic, and what they give is stored whole or not at all.
The function is called in a process beside the task's: one that hangs or kills it fails, as it does without Spark.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from weir.functions import failing
from weir.functions.executing import States
from weir.functions.executors import Executors
from weir.functions.log_topic import line_of
from weir.functions.options import FunctionOptions
from weir.functions.place import kafka_name
from weir.functions.protocol import Headers, Item, LogLine, Out, Result, SchemaVersion, Setup
from weir.functions.values import all_values
from weir.model.functions import Function
from weir.model.topics import TopicName
from weir.wire.kafka.records_build import Record

#: What a row is: sent by the function, a dead letter, or a line of its log; or an attempt that failed, which is
#: counted and not written.
SENT, DEAD, LINE, FAILED = "sent", "dead", "line", "failed"


class OutRow(NamedTuple):
    """A message to write. `topic`: by its name for Kafka's clients."""

    kind: str
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


def setup_of(
    function: Function,
    options: FunctionOptions,
    schemas: Mapping[str, Sequence[SchemaVersion]],
    *,
    sliced: bool = False,
) -> Setup:
    """What a process has to know that calls the function. `schemas`: by topics, empty for those without."""
    return Setup(
        name=function.name.local,
        version=function.version,
        instance=0,
        code=function.code,
        file=function.file,
        entry=function.entry,
        output=None if function.output is None else str(function.output),
        config=dict(options.config),
        stateful=options.stateful,
        batch=options.batch,
        log_level=options.log_level,
        schemas={topic: list(versions) for topic, versions in schemas.items() if versions},
        timeout_s=options.timeout_s,
        namespace=str(function.name.namespace),
        sliced=sliced,
    )


class InPlace:
    """One function; FunctionError if it cannot be loaded. `partitioned`: topics that have partitions. `close`
    it."""

    def __init__(
        self,
        function: Function,
        options: FunctionOptions,
        schemas: Mapping[str, Sequence[SchemaVersion]],
        partitioned: Sequence[str] = (),
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._function = function
        self._options = options
        self._policy = options.policy
        self._partitioned = frozenset(partitioned)
        self._sleep = sleep
        self.values = all_values(schemas)
        self._executors = Executors(setup_of(function, options, schemas), 1, timeout_s=options.timeout_s or None)
        self._log_topic = log_topic_of(function, options)

    def close(self) -> None:
        self._executors.close()

    def run(self, items: Sequence[Item], states: States) -> tuple[list[OutRow], States]:
        """All rows that come of them, and the states that have changed."""
        rows: list[OutRow] = []
        changed: States = {}
        most = 1 if self._options.ordered else self._options.batch_messages
        for at in range(0, len(items), most):
            some = list(items[at : at + most])
            more, after = self._tried(some, states | changed)
            rows += more
            changed |= after
        return rows, changed

    def _tried(self, items: list[Item], states: States) -> tuple[list[OutRow], States]:
        rows: list[OutRow] = []
        changed: States = {}
        attempt = 0
        while items:
            attempt += 1
            if attempt > 1:
                self._sleep(self._policy.delay_ms(attempt - 1) / 1000)
            for item in items:
                item.attempt = attempt
            outcome = self._executors.run(items, states | changed)
            changed |= outcome.states
            lines = list(outcome.logs)
            failed = []
            for item, result in zip(items, outcome.results, strict=True):
                if result.error is None:
                    rows += [row for out in result.outs if (row := self._sent(out)) is not None]
                    continue
                lines.append(_failure(item, result))
                rows.append(OutRow(FAILED, "", None, None, [], item.timestamp))
                if self._policy.is_over(attempt):
                    rows.append(self._dead(item, result.error))
                else:
                    failed.append(item)
            rows += [] if self._log_topic is None else [self._line(self._log_topic, one) for one in lines]
            items = failed
        return rows, changed

    def _sent(self, out: Out) -> OutRow | None:
        """None if it goes nowhere."""
        output = self._function.output
        target = output if out.topic is None else TopicName.parse(out.topic)
        if target is None:
            return None
        return OutRow(SENT, kafka_name(target), out.key, out.value, out.headers, out.timestamp)

    def _dead(self, item: Item, error: str) -> OutRow:
        topic = failing.dead_letter_topic(item, self._function, self._policy)
        partitioned = item.topic in self._partitioned
        record = failing.dead_letter(item, self._function, error, _now_ms(), partitioned=partitioned)
        return _row(DEAD, kafka_name(topic), record)

    def _line(self, topic: str, line: LogLine) -> OutRow:
        return _row(LINE, topic, line_of(self._function, line))


def log_topic_of(function: Function, options: FunctionOptions) -> str | None:
    """By its name for Kafka's clients; None: it has none."""
    if not options.log_topic:
        return None
    if "/" in options.log_topic:
        return kafka_name(TopicName.parse(options.log_topic))
    return kafka_name(TopicName(function.name.namespace, options.log_topic))


def _row(kind: str, topic: str, record: Record) -> OutRow:
    headers = [(bytes(name).decode(), None if value is None else bytes(value)) for name, value in record.headers]
    key = None if record.key is None else bytes(record.key)
    value = None if record.value is None else bytes(record.value)
    return OutRow(kind, topic, key, value, headers, record.timestamp)


def _failure(item: Item, result: Result) -> LogLine:
    text = f"attempt {item.attempt} failed: {result.error}"
    return LogLine(_now_ms(), "ERROR", "weir", text, item.topic, item.partition, item.offset)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
