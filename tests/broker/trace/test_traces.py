"""What becomes of messages, told as it happens: whole or not at all, and of as many as the policy says."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from weir.broker.api.consumers import Delivery
from weir.broker.trace.topic_trace import TopicTrace
from weir.broker.trace.trace_log import TraceLog
from weir.model.batch import Batch, BatchFormat, HeldId
from weir.model.messages import Message, TraceEvent, TraceKind
from weir.model.policies import Policies
from weir.model.topics import NamespaceName, TopicName
from weir.testing.world.world import World, simulate
from weir.wire.formats.messages import encode_messages
from weir.wire.trace import decode_event, encode_event, key_word, offset_word, position_word, trace_word

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TOPIC = TopicName.parse("t")


class Clock:
    def wall_ms(self) -> int:
        return 1000


class Told(TraceLog):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(Clock(), "b1")  # type: ignore[arg-type]
        self.events: list[TraceEvent] = []

    def note(self, namespace: NamespaceName, event: TraceEvent) -> None:
        self.events.append(event)

    def said(self) -> list[tuple[Any, ...]]:
        return [(one.event, one.first, one.end, one.subscription, one.reason) for one in self.events]


def batch(base: int, *keys: str, held: HeldId | None = None) -> Batch:
    headers = [("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01".encode())]
    messages = [Message(key.encode(), b"v", headers) for key in keys]
    return Batch(base, len(keys), BatchFormat.MESSAGES, 900, encode_messages(messages), held=held)


def traced(rate: float = 1.0) -> tuple[TopicTrace, Told]:
    log = Told()
    trace = TopicTrace(TOPIC, log, Clock(), position_of=lambda offset: (7, offset))  # type: ignore[arg-type]
    trace.apply(Policies(trace_ppm=int(rate * 1_000_000)))
    return trace, log


def test_a_stored_batch_is_told_with_its_producer_keys_and_traces() -> None:
    trace, log = traced()
    trace.stored([batch(-1, "a", "b"), batch(-1, "c")], 5, 0.002, producer="p", address="here:1")
    first, second = log.events
    assert (first.event, first.first, first.end, first.took_ms) == ("stored", 5, 7, 2.0)
    assert (first.keys, first.traces, first.producer, first.address) == (("a", "b"), (TRACE, TRACE), "p", "here:1")
    assert (first.ledger, first.entry, first.broker, second.first) == (7, 5, "b1", 7)


def test_what_is_delivered_is_settled_returned_or_given_up() -> None:
    trace, log = traced()
    trace.delivered("s", "who", "c", "there:1", [Delivery(batch(0, *"abcdef"), 0b110111)])
    trace.settled("s", [(0, 2)], TraceKind.ACKNOWLEDGED)
    trace.settled("other", [(0, 6)], TraceKind.ACKNOWLEDGED)
    trace.returned("s", "who", [(2, 5)])
    trace.settled("s", [(2, 3)], TraceKind.DROPPED, "a dead letter")
    trace.returned("s", "who", None)
    assert log.said() == [
        ("delivered", 0, 3, "s", ""),
        ("delivered", 4, 6, "s", ""),
        ("acknowledged", 0, 2, "s", ""),
        ("retried", 2, 3, "s", ""),
        ("retried", 4, 5, "s", ""),
        ("dropped", 2, 3, "s", "a dead letter"),
        ("retried", 5, 6, "s", ""),
    ]


def test_what_a_subscription_passes_by_is_told_whether_it_was_delivered_or_not() -> None:
    trace, log = traced()
    trace.stored([batch(-1, "a", "b"), batch(-1, "c", "d")], 5, 0.002)
    consumer = object()
    trace.delivered("s", consumer, "c", "", [Delivery(batch(5, "a", "b"))])
    log.events.clear()
    assert list(trace.kept(0, 8)) == [5, 6, 7]
    trace.passed_by("s", trace.kept(0, 8), "expired")
    assert log.said() == [("dropped", 5, 7, "s", "expired"), ("dropped", 7, 8, "s", "expired")]
    trace.settled("s", [(5, 7)], TraceKind.ACKNOWLEDGED)
    assert len(log.events) == 2, "what is dropped is told once"
    log.events.clear()
    trace.trimmed(7)
    trace.trimmed(7)
    assert log.said() == [("dropped", 5, 7, "", "retention")]
    assert list(trace.kept(0, 100)) == [7, 8]


def test_all_that_happens_to_a_batch_is_told_or_nothing_and_as_many_as_the_rate_says() -> None:
    trace, log = traced(0.1)
    told = 0
    for base in range(0, 30_000, 3):
        log.events.clear()
        trace.stored([batch(-1)], base, 0.0)
        stored = bool(log.events)
        log.events.clear()
        trace.delivered("s", "who", "c", "", [Delivery(batch(base, "a", "b", "c"))])
        trace.settled("s", [(base, base + 3)], TraceKind.ACKNOWLEDGED)
        assert [one.event for one in log.events] == (["delivered", "acknowledged"] if stored else [])
        told += stored
    assert told == pytest.approx(1000, rel=0.2)


def test_what_was_held_is_told_by_where_it_was_held() -> None:
    trace, log = traced(0.5)
    for entry in range(50):
        place = HeldId(3, entry)
        log.events.clear()
        trace.held(batch(-1, "a"), place, 5000, producer="p")
        held = [one.held for one in log.events]
        log.events.clear()
        trace.delivered("s", "who", "c", "", [Delivery(batch(entry, "a", held=place))])
        assert bool(log.events) is bool(held)
        assert held in ([], [f"3:{entry}"])


def test_without_a_rate_nothing_is_told_and_traces_are_never_traced() -> None:
    assert traced(0)[0].on is False
    of_traces = TopicTrace(TopicName.parse("weir_trace"), Told(), Clock())  # type: ignore[arg-type]
    of_traces.apply(Policies(trace_ppm=1_000_000))
    assert of_traces.on is False


def test_an_event_is_read_as_it_was_written_and_found_by_its_words() -> None:
    from weir.wire.formats.messages import decode_messages, join_messages

    event = TraceEvent("stored", "t", 1, "b", 60, 70, ledger=3, entry=1, keys=("a b", ""), traces=(TRACE,))
    (message,) = decode_messages(join_messages([encode_event(event)]))
    assert decode_event(message.value or b"") == event
    words = dict(message.headers)["KEYS"].decode().split()  # type: ignore[union-attr]
    assert words == [
        offset_word("t", 60),
        offset_word("t", 69),
        position_word("t", 3, 10),
        key_word("t", "a b"),
        trace_word(TRACE),
    ]


class _Queue:
    alive = True

    def __init__(self, fails: bool) -> None:
        self.entries: list[Any] = []
        self._fails = fails

    async def publish(self, messages: Any) -> int:
        from weir.model.errors import TopicClosedError

        if self._fails:
            raise TopicClosedError("gone")
        self.entries.append(messages)
        return 0


class _Everything:
    """Queues, registry and schemas at once."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue
        self.asked: list[str] = []

    async def open(self, namespace: NamespaceName) -> Any:
        return self

    async def look(self, name: str) -> _Queue:
        return self._queue

    async def ensure_topic(self, name: TopicName, *, create: bool = True) -> None:
        from weir.model.errors import TopicNotFoundError

        self.asked.append(f"ensure {create}")
        if not create:
            raise TopicNotFoundError("none")

    async def change_policies(self, where: TopicName, change: Callable[[Policies], Policies]) -> Policies:
        self.asked.append("policies")
        return change(Policies())

    async def register(self, topic: TopicName, schema: Any, *, role: str, strategy: Any = None) -> bytes:
        self.asked.append("schema")
        return b""


@pytest.mark.parametrize("fails", [False, True])
def test_events_of_one_moment_are_one_entry_and_what_fails_is_counted(fails: bool) -> None:
    async def main(world: World) -> None:
        async def on_node(runtime: Any) -> None:
            queue = _Queue(fails)
            around: Any = _Everything(queue)
            log = TraceLog(runtime.clock)
            log.lead_to(around, around, around, "b1")
            for number in range(100):
                event = TraceEvent("delivered", "t", 5, "b1", 2 * number, 2 * number + 1, subscription="s")
                log.note(TOPIC.namespace, event)
            await runtime.clock.sleep(1)
            counts: Sequence[int] = [len(entry.encoded) for entry in queue.entries]
            assert (counts, log.written, log.dropped) == (([], 0, 100) if fails else ([100], 100, 0))
            assert around.asked == ["ensure False", "ensure True", "policies", "schema"]
            await log.close()

        await world.node("b").start(on_node)

    simulate(1, main)
