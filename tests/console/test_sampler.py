"""The sampler's work is bounded, whatever a broker has and whoever looks. Counted, not timed."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from weir.broker.api.broker import BrokerFlows
from weir.console.history import Live
from weir.console.sampler import Sampler
from weir.model.topics import NamespaceName, TopicName

NAMESPACE = NamespaceName("public", "default")
#: As `docs/how-to/console.md` says: what a tick samples at the most, while nobody asks for a topic.
MOST_PER_TICK = 150


def flow(rate: float = 0.0) -> Any:
    return SimpleNamespace(messages=0, bytes=0, messages_per_s=rate, bytes_per_s=rate)


@dataclass
class CountedTopic:
    name: TopicName
    backlog: int = 0
    asked: int = 0
    stored: Any = None

    def stats(self) -> Any:
        self.asked += 1
        subscription = SimpleNamespace(name="s", backlog=self.backlog, placed=True, durable=True, consumers=())
        return SimpleNamespace(
            subscriptions=[subscription], published=flow(), delivered=flow(), producers=(), storage_bytes=0
        )


@dataclass
class CountedBroker:
    topics: dict[TopicName, CountedTopic]
    flows: BrokerFlows = field(default_factory=BrokerFlows)
    listed: int = 0

    @property
    def loaded(self) -> list[CountedTopic]:
        self.listed += 1
        return list(self.topics.values())

    def served_now(self, name: TopicName) -> CountedTopic | None:
        return self.topics.get(name)


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def broker_of(count: int) -> CountedBroker:
    names = [TopicName(NAMESPACE, f"t{number}") for number in range(count)]
    return CountedBroker({name: CountedTopic(name) for name in names})


def ticked(sampler: Sampler, clock: Clock, ticks: int) -> None:
    for _ in range(ticks):
        clock.now += 2.0
        sampler.tick()


def test_a_broker_with_a_hundred_thousand_topics_stays_idle_while_ten_look() -> None:
    broker, clock = broker_of(100_000), Clock()
    sampler = Sampler(clock, broker)  # type: ignore[arg-type]
    looking = [sampler.viewed() for _ in range(10)]
    for each in looking:
        each.__enter__()
    for name in list(broker.topics)[:5_000]:  # and thousands of topics are busy at once
        broker.flows.taken.note(name, 1, 1)
    ticked(sampler, clock, 100)
    assert sum(topic.asked for topic in broker.topics.values()) == sampler.work <= 100 * MOST_PER_TICK
    assert broker.listed == 1, "all topics are listed once they all had their turn, not at every tick"
    assert len(sampler.topics) <= 500
    for each in looking:
        each.__exit__(None, None, None)


def test_all_topics_of_a_small_broker_have_a_history() -> None:
    broker, clock = broker_of(20), Clock()
    sampler = Sampler(clock, broker)  # type: ignore[arg-type]
    ticked(sampler, clock, 5)
    assert {len(history.points) for history in sampler.topics.values()} == {5}
    assert len(sampler.topics) == 20


def test_the_sum_of_backlogs_follows_topics_that_come_change_and_go() -> None:
    broker, clock = broker_of(3), Clock()
    sampler = Sampler(clock, broker)  # type: ignore[arg-type]
    first, second, third = broker.topics.values()
    first.backlog, second.backlog, third.backlog = 5, 7, 0
    ticked(sampler, clock, 1)
    assert sampler.points[-1].backlog == 12
    second.backlog = 1
    del broker.topics[first.name]
    ticked(sampler, clock, 2)
    assert sampler.points[-1].backlog == 1
    assert first.name not in sampler.topics, "what is gone is not shown any more"


def test_rates_are_what_passed_since_the_tick_before() -> None:
    broker, clock = broker_of(1), Clock()
    sampler = Sampler(clock, broker)  # type: ignore[arg-type]
    ticked(sampler, clock, 1)
    name = next(iter(broker.topics))
    broker.flows.taken.note(name, 10, 1000)
    broker.flows.given.note(name, 4, 400)
    ticked(sampler, clock, 1)
    point = sampler.points[-1]
    assert (point.messages_in, point.messages_out, point.bytes_in, point.bytes_out) == (5.0, 2.0, 500.0, 200.0)


async def test_what_topics_hold_for_later_is_counted() -> None:
    broker, clock = broker_of(3), Clock()
    sampler = Sampler(clock, broker)  # type: ignore[arg-type]

    async def count() -> Any:
        return SimpleNamespace(messages=4)

    holder = next(iter(broker.topics.values()))
    holder.stored = SimpleNamespace(held=SimpleNamespace(count=count))
    ticked(sampler, clock, 1)
    await sampler.count_held()
    assert sampler.held == 4
    del broker.topics[holder.name]
    await sampler.count_held()
    assert sampler.held == 0


async def test_what_ten_look_at_is_rendered_once() -> None:
    live = Live()
    rendered = 0

    async def render(view: Any) -> str:
        nonlocal rendered
        rendered += 1
        return "piece"

    view: Any = SimpleNamespace(role="anyone")
    for revision in (1, 2):
        for _ in range(10):
            assert await live._piece(view, "overview", revision, render) == "piece"
    assert rendered == live.rendered == 2
