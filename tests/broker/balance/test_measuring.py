"""What a broker measures of itself, by bundle, and where it would split one."""

import pytest

from weir.broker.balance.load_meter import LoadMeter
from weir.broker.rates import Traffic
from weir.model.cluster import MAX_REPORTED_BUNDLES, Boundaries, BundleName, topic_hash
from weir.model.registry import SYSTEM_NAMESPACE
from weir.model.topics import DEFAULT_NAMESPACE, TopicName
from weir.testing.world.resources import SimResources

WHOLE = BundleName(DEFAULT_NAMESPACE, 0, 0xFFFFFFFF)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Topic:
    def __init__(self, name: str) -> None:
        self.name = TopicName.parse(name)
        self.total = [0, 0, 0, 0]

    def pass_(self, *amounts: int) -> None:
        self.total = [total + amount for total, amount in zip(self.total, amounts, strict=True)]

    def traffic(self) -> Traffic:
        return Traffic(*self.total)


class Stage:
    """A broker with some topics in four bundles."""

    def __init__(self, *names: str, boundaries: int = 4, **how: object) -> None:
        self.clock = Clock()
        self.resources = SimResources()
        self.topics = [Topic(name) for name in names]
        self.held: list[BundleName] = []
        self.meter = LoadMeter(
            "b1",
            self.clock,  # type: ignore[arg-type]
            self.resources,
            topics=lambda: self.topics,
            bundle_of=Boundaries.even(boundaries).bundle_of,
            held=lambda: self.held,
            **how,  # type: ignore[arg-type]
        )

    def after(self, seconds: float, loop_s: float = 0.0) -> None:
        self.clock.now += seconds
        self.resources.loop_s += loop_s


def test_rates_are_summed_by_bundle_and_over_all() -> None:
    stage = Stage("a", "b", f"{SYSTEM_NAMESPACE}/c")
    for topic in stage.topics:
        topic.pass_(100, 1000, 200, 3000)
    stage.after(10)
    load = stage.meter.load()
    bundles = {bundle.bundle: bundle for bundle in load.bundles}
    named = [str(Boundaries.even().bundle_of(topic.name)) for topic in stage.topics]
    assert set(bundles) == set(named)
    for name in named:
        assert bundles[name].messages_in == 10 * named.count(name)
        assert bundles[name].bytes_out == 300 * named.count(name)
        assert bundles[name].topics == named.count(name)
    assert (load.messages_in, load.bytes_in, load.messages_out, load.bytes_out) == (30, 300, 60, 900)
    assert load.bundle_count == len(set(named))


def test_bundles_without_loaded_topics_are_reported_too() -> None:
    stage = Stage()
    stage.held = Boundaries.even().bundles(DEFAULT_NAMESPACE)
    load = stage.meter.load()
    assert [bundle.bundle for bundle in load.bundles] == [str(bundle) for bundle in stage.held]
    assert load.bundle_count == 4


def test_cpu_is_the_loops_share_of_its_core_or_the_processs_of_all() -> None:
    stage = Stage()
    stage.resources.core_count = 4
    stage.after(10, loop_s=5)
    assert stage.meter.load().cpu == pytest.approx(0.5)
    stage.resources.process_s = stage.resources.loop_s + 38
    stage.after(40, loop_s=0)
    assert stage.meter.load().cpu == pytest.approx(38 / 40 / 4)


def test_memory_is_a_share_of_the_machines_or_of_what_the_operator_gives() -> None:
    stage = Stage()
    stage.resources.used_bytes, stage.resources.limit_bytes = 300, 1200
    assert stage.meter.load().memory == 0.25
    given = Stage(memory_bytes=600)
    given.resources.used_bytes = 300
    assert given.meter.load().memory == 0.5


def test_a_burst_counts_as_far_as_it_is_long() -> None:
    stage = Stage("a")
    stage.after(30)
    stage.meter.load()
    stage.topics[0].pass_(1000, 0, 0, 0)
    stage.after(10)
    assert stage.meter.load().messages_in == pytest.approx(100 / 3)
    stage.after(30)
    assert stage.meter.load().messages_in == 0


def test_asked_again_at_once_it_answers_what_it_measured_last() -> None:
    stage = Stage("a")
    stage.topics[0].pass_(100, 0, 0, 0)
    stage.after(10)
    first = stage.meter.load()
    stage.topics[0].pass_(5, 0, 0, 0)
    stage.after(1)
    assert stage.meter.load() == first


def test_a_topic_that_was_loaded_again_counts_from_nothing() -> None:
    stage = Stage("a")
    stage.topics[0].pass_(10_000, 0, 0, 0)
    stage.after(30)
    stage.meter.load()
    stage.topics = [Topic("a")]
    stage.topics[0].pass_(60, 0, 0, 0)
    stage.after(30)
    assert stage.meter.load().messages_in == pytest.approx(2)


def test_of_too_many_bundles_the_busiest_are_named() -> None:
    stage = Stage(*(f"t{n}" for n in range(MAX_REPORTED_BUNDLES + 200)), boundaries=65_536)
    stage.topics[7].pass_(500, 0, 0, 0)
    stage.after(10)
    load = stage.meter.load()
    assert len(load.bundles) == MAX_REPORTED_BUNDLES < load.bundle_count
    assert load.bundles[0].messages_in == 50


def test_a_bundle_is_split_where_its_load_is_halved() -> None:
    stage = Stage(*(f"t{n}" for n in range(8)), boundaries=1)
    by_hash = sorted(stage.topics, key=lambda topic: topic_hash(topic.name))
    for topic, amount in zip(by_hash, (0, 10, 0, 80, 10, 0, 100, 0), strict=True):
        topic.pass_(amount, 0, 0, 0)
    stage.after(10)
    stage.meter.load()
    assert stage.meter.split_point(WHOLE) == topic_hash(by_hash[5].name)


def test_one_topic_with_all_the_load_is_parted_from_the_others() -> None:
    stage = Stage("a", "b", "c", boundaries=1)
    by_hash = sorted(stage.topics, key=lambda topic: topic_hash(topic.name))
    by_hash[0].pass_(100, 0, 0, 0)
    stage.after(10)
    stage.meter.load()
    at = stage.meter.split_point(WHOLE)
    assert at is not None
    low, high = WHOLE.halves(at)
    assert low.holds(by_hash[0].name)
    assert high.holds(by_hash[1].name)
    assert high.holds(by_hash[2].name)


def test_a_bundle_without_load_is_split_between_its_topics() -> None:
    stage = Stage("a", "b", "c", "d", boundaries=1)
    at = stage.meter.split_point(WHOLE)
    assert at is not None
    low, _ = WHOLE.halves(at)
    assert sum(low.holds(topic.name) for topic in stage.topics) == 2
