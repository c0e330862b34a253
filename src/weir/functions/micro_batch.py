"""A function over rows of a micro-batch: what fails is tried again in its place, and given up at last.

Plain Python, which Spark's tasks run: they know no retry topic, and what they give is stored whole or not at all.
The function is called in a process beside the task's: one that hangs or kills it fails, as it does without Spark.

Messages that the function failed at: when they come again, and what they say when they are given up.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from weir.functions.executor_pool import Executors
from weir.functions.executor_protocol import Headers, Item, LogLine, Out, Result, SchemaVersion, Setup
from weir.functions.invocation import States
from weir.functions.options import FunctionOptions
from weir.functions.output import line_of
from weir.functions.subscriptions import kafka_name
from weir.functions.values import all_values
from weir.model.definitions import Function
from weir.model.errors import InvalidNameError
from weir.model.messages import NAMES, Death
from weir.model.retry import RetryPolicy
from weir.model.topics import TopicName
from weir.wire.kafka.records import Record

#: Of a message that waits in the retry topic: where it was, and for the how many-th time it comes now.
_TOPIC, _PARTITION, _OFFSET, _ATTEMPT = "weir-fn-topic", "weir-fn-partition", "weir-fn-offset", "weir-fn-attempt"
_AFTER = "weir-deliver-after"
#: Of a message that was delayed when it came: it would be so again.
_DELAYS = (_AFTER, "weir-deliver-at", "weir-delay-id", "weir-cancel")
_OURS = (_TOPIC, _PARTITION, _OFFSET, _ATTEMPT, _AFTER)
ERROR = "weir-dead-error"


def item_of(record: Record, topic: TopicName, partition: int, offset: int, *, waited: bool = False) -> Item:
    """A record as the function gets it; one that `waited` in the retry topic is what it was at first."""
    headers: Headers = [
        (bytes(name).decode(errors="replace"), None if value is None else bytes(value))
        for name, value in record.headers
    ]
    item = Item(
        str(topic),
        partition,
        offset,
        None if record.key is None else bytes(record.key),
        None if record.value is None else bytes(record.value),
        headers,
        record.timestamp,
    )
    if waited:
        with suppress(KeyError, ValueError, InvalidNameError):  # what others put there is nothing but itself
            said = {name: value.decode() for name, value in headers if name in _OURS and value is not None}
            first = str(TopicName.parse(said[_TOPIC])), int(said[_PARTITION]), int(said[_OFFSET])
            item.attempt = int(said[_ATTEMPT])
            item.topic, item.partition, item.offset = first
            item.headers = [(name, value) for name, value in headers if name not in _OURS]
    return item


def again(item: Item, policy: RetryPolicy) -> Record:
    """As it waits in the retry topic, for as long as the policy says."""
    headers = [
        *((name, value) for name, value in item.headers if name not in (*_OURS, *_DELAYS)),
        (_TOPIC, item.topic.encode()),
        (_PARTITION, str(item.partition).encode()),
        (_OFFSET, str(item.offset).encode()),
        (_ATTEMPT, str(item.attempt + 1).encode()),
    ]
    wait_ms = policy.delay_ms(item.attempt)
    if wait_ms:
        headers.append((_AFTER, str(wait_ms).encode()))
    return _record(item, headers)


def dead_letter(item: Item, function: Function, error: str, now_ms: int, *, partitioned: bool) -> Record:
    """As dead letters of the server say it (docs/reference/retries.md), and with the error."""
    topic = TopicName.parse(item.topic)
    death = Death(
        "delivery_limit",
        item.attempt,
        topic.at(item.partition) if partitioned else topic,
        item.offset,
        function.subscription,
        item.timestamp,
        now_ms,
    )
    kept = [(name, value) for name, value in item.headers if name not in (*NAMES, ERROR, *_DELAYS)]
    return _record(item, [*kept, *death.headers(), (ERROR, error[:1_000].encode())])


def dead_letter_topic(item: Item, function: Function, policy: RetryPolicy) -> TopicName:
    return policy.dead_letters_of(TopicName.parse(item.topic), function.subscription)


def _record(item: Item, headers: Headers) -> Record:
    return Record(0, item.timestamp, item.key, item.value, [(name.encode(), value) for name, value in headers])


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
        topic = dead_letter_topic(item, self._function, self._policy)
        partitioned = item.topic in self._partitioned
        record = dead_letter(item, self._function, error, _now_ms(), partitioned=partitioned)
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
