"""Spans of what becomes of messages that carry a trace, as OpenTelemetry's own SDK has them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from weir.broker.api.consumers import StartAt, SubscribeRequest, SubscriptionType
from weir.broker.api.queues import QueueMessages
from weir.broker.trace.spans import SpanMemory, TopicSpans
from weir.model.batch import Batch, BatchFormat
from weir.model.messages import Message, TraceKind
from weir.model.policies import Policies
from weir.model.retry import MAX_DELIVERIES, SCHEDULE
from weir.model.subscriptions import SQL_PROPERTY
from weir.model.topics import TopicName
from weir.server.telemetry import MessageSpans
from weir.wire.formats.messages import encode_message, encode_messages

TRACE, PRODUCER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PRODUCER}-01"
#: (name, its parent's name or "producer", the reason).
Told = list[tuple[str, str, str]]


class _StageClock:
    """The stage's, once there is one."""

    def __init__(self) -> None:
        self.of: Any = None

    def wall_ms(self) -> int:
        now: int = 0 if self.of is None else self.of.wall_ms()
        return now


class Exported:
    """What the SDK's exporter in memory has."""

    def __init__(self) -> None:
        self.clock = _StageClock()
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = MessageSpans(provider.get_tracer("weir"), self.clock)  # type: ignore[arg-type]

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def told(self, *names: str) -> Told:
        """In the order in which they ended; of these names only, if any are said."""
        by_id = {format(span.context.span_id, "016x"): span.name for span in self.spans if span.context}
        found: Told = []
        for span in self.spans:
            assert span.context is not None
            assert span.parent is not None
            assert span.attributes is not None
            assert format(span.context.trace_id, "032x") == TRACE
            assert (span.start_time or 0) <= (span.end_time or 0)
            parent = format(span.parent.span_id, "016x")
            above = "producer" if parent == PRODUCER else by_id[parent]
            if not names or span.name.split()[0] in names:
                found.append((span.name, above, str(span.attributes.get("weir.reason", ""))))
        return found


@pytest.fixture
def exported() -> Exported:
    return Exported()


@pytest.fixture
def traced(run: Callable[..., None], exported: Exported) -> Callable[..., None]:
    """Run a scenario on a broker that exports spans."""

    def run_it(scenario: Callable[[Any], Any]) -> None:
        async def on_stage(stage: Any) -> None:
            exported.clock.of = stage.runtime.clock
            await scenario(stage)

        run(on_stage, tracing=exported.tracing)

    return run_it


async def publish(queue: Any, text: str, *headers: tuple[str, bytes], traceparent: str = TRACEPARENT) -> None:
    message = Message(None, text.encode(), [("traceparent", traceparent.encode()), *headers])
    assert await queue.publish(QueueMessages([encode_message(message)])) == 0


async def shared(stage: Any, properties: dict[str, str]) -> Any:
    """A consumer as Pulsar's shared ones are, of the subscription `s` of `orders`."""
    topic = await stage.topic("orders")
    topic.ensure_subscription("s", StartAt(), properties)
    return await topic.subscribe(SubscribeRequest("ann", "s", SubscriptionType.SHARED))


async def until(stage: Any, true: Callable[[], bool]) -> None:
    for _ in range(600):  # of simulated time
        if true():
            return
        await stage.runtime.clock.sleep(0.1)
    raise AssertionError("it did not come")


def test_an_acknowledgement_is_a_child_of_the_delivery_and_lasts_since_then(
    traced: Callable[..., None], exported: Exported
) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q")
        await publish(queue, "hello")
        await stage.publish(queue, "without a trace")
        consumer = await stage.consumer(queue)
        await stage.receive(consumer, 2)
        await stage.runtime.clock.sleep(3)
        consumer.ack([(0, 2)])

    traced(scenario)
    assert exported.told() == [
        ("store q", "producer", ""),
        ("deliver q", "producer", ""),
        ("acknowledge q", "deliver q", ""),
    ]
    last = exported.spans[-1]
    assert last.attributes is not None
    assert (last.attributes["messaging.message.id"], last.attributes["messaging.consumer.group.name"]) == (
        "0",
        "queue",
    )
    assert (last.end_time or 0) - (last.start_time or 0) >= 3_000_000_000


def test_what_is_taken_one_by_one_is_told_as_well(traced: Callable[..., None], exported: Exported) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q")
        await publish(queue, "hello")
        consumer = await stage.consumer(queue)
        assert await consumer.take() is not None
        consumer.ack([(0, 1)])

    traced(scenario)
    assert exported.told("deliver", "acknowledge") == [
        ("deliver q", "producer", ""),
        ("acknowledge q", "deliver q", ""),
    ]


def test_what_comes_again_has_a_retry_under_each_delivery_that_failed_and_a_dead_letter_its_drop(
    traced: Callable[..., None], exported: Exported
) -> None:
    async def scenario(stage: Any) -> None:
        consumer = await shared(stage, {SCHEDULE: "1s", MAX_DELIVERIES: "2"})
        await publish(await stage.queues.look("orders"), "bad")
        for _ in range(2):
            await stage.receive(consumer, 1)
            consumer.redeliver([(0, 1)])
        await until(stage, lambda: any(name.startswith("store orders-s") for name, _, _ in exported.told()))

    traced(scenario)
    assert exported.told() == [
        ("store orders", "producer", ""),
        ("deliver orders", "producer", ""),
        ("retry orders", "deliver orders", ""),
        ("deliver orders", "producer", ""),
        ("retry orders", "deliver orders", ""),
        ("drop orders", "deliver orders", "dead letter: delivered too often"),
        ("store orders-s-DLQ", "producer", ""),
    ]
    deliveries = [span for span in exported.spans if span.name == "deliver orders"]
    under = [span.parent for span in exported.spans if span.name in ("retry orders", "drop orders")]
    ids = [span.context.span_id for span in deliveries if span.context is not None]
    assert [parent.span_id for parent in under if parent is not None] == [ids[0], ids[1], ids[1]]


def test_what_a_consumer_rejects_is_dropped_and_what_it_leaves_behind_is_retried(
    traced: Callable[..., None], exported: Exported
) -> None:
    async def scenario(stage: Any) -> None:
        consumer = await shared(stage, {})
        queue = await stage.queues.look("orders")
        await publish(queue, "bad")
        await stage.receive(consumer, 1)
        consumer.reject([(0, 1)])
        await publish(queue, "good")
        await stage.receive(consumer, 1)
        await consumer.close()

    traced(scenario)
    assert exported.told("drop", "retry") == [
        ("drop orders", "deliver orders", "dead letter: rejected"),
        ("retry orders", "deliver orders", "closed by the client"),
    ]


def test_what_expires_before_anybody_had_it_is_a_drop_under_the_producer(
    traced: Callable[..., None], exported: Exported
) -> None:
    async def scenario(stage: Any) -> None:
        short = await stage.declare("short", arguments={"x-message-ttl": 1000})
        await publish(short, "late")
        await stage.declare("letters")
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}
        full = await stage.declare("full", arguments={"x-max-length": 1, **dead})
        await publish(full, "first")
        await publish(full, "second")
        topic = await stage.topic("orders")
        topic.ensure_subscription("s", StartAt(), {})
        await publish(await stage.queues.look("orders"), "unread")
        assert topic.subscriptions["s"].expire_before(1) == 1
        await until(stage, lambda: len(exported.told("drop")) == 3)
        await until(stage, lambda: ("store letters", "producer", "") in exported.told())

    traced(scenario)
    assert sorted(exported.told("drop")) == [
        ("drop full", "producer", "dead letter: the queue was full"),
        ("drop orders", "producer", "expired"),
        ("drop short", "producer", "expired: its time to live was over"),
    ]


def test_what_a_filter_leaves_out_is_a_drop_under_the_producer(
    traced: Callable[..., None], exported: Exported
) -> None:
    async def scenario(stage: Any) -> None:
        consumer = await shared(stage, {SQL_PROPERTY: "region = 'eu'"})
        queue = await stage.queues.look("orders")
        await publish(queue, "no", ("region", b"us"))
        await publish(queue, "yes", ("region", b"eu"))
        assert await stage.texts(consumer, 1) == ["yes"]
        consumer.ack([(1, 2)])

    traced(scenario)
    assert exported.told("drop", "acknowledge") == [
        ("drop orders", "producer", "filtered"),
        ("acknowledge orders", "deliver orders", ""),
    ]


def test_a_trace_that_its_producer_does_not_sample_has_no_spans(
    traced: Callable[..., None], exported: Exported
) -> None:
    async def scenario(stage: Any) -> None:
        queue = await stage.declare("q")
        await publish(queue, "hello", traceparent=f"00-{TRACE}-{PRODUCER}-00")
        consumer = await stage.consumer(queue)
        await stage.receive(consumer, 1)
        consumer.ack([(0, 1)])

    traced(scenario)
    assert exported.spans == ()


def test_so_many_messages_are_remembered_and_the_oldest_are_forgotten(exported: Exported) -> None:
    memory = SpanMemory(2)
    spans = TopicSpans(TopicName.parse("t"), exported.tracing, memory, exported.clock)  # type: ignore[arg-type]
    spans.apply(replace(Policies(), trace_ppm=0))
    one = encode_messages([Message(None, b"v", [("traceparent", TRACEPARENT.encode())])])
    batch = Batch(-1, 1, BatchFormat.MESSAGES, 900, one)
    for offset in range(3):
        spans.stored([batch], offset, 0.0)
    assert (len(memory), list(spans.kept(0, 9))) == (2, [1, 2])
    spans.passed_by("s", spans.kept(0, 9), "skipped")
    assert exported.told("drop") == [("drop t", "producer", "skipped")] * 2
    spans.trimmed(2)
    assert (len(memory), list(spans.kept(0, 9))) == (1, [2])
    spans.settled("s", [(0, 9)], TraceKind.ACKNOWLEDGED)
    assert len(exported.told("acknowledge")) == 0, "nobody had it"
