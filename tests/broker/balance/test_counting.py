"""Brokers serve about as many topics as each other: partitions get even after a broker returns."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from weir.broker.balance.balance_plan import plan_moves
from weir.broker.balance.balance_round import BalanceLimits, History, Move, NoIsolation, Reason, Split
from weir.model.cluster import BrokerLoad, BundleLoad

LIMITS = BalanceLimits()
ROUND_S = 30.0


def loaded(broker: str, bundles: dict[str, int], per_topic: float = 0.0) -> BrokerLoad:
    """A broker with bundles of so many topics, each with such a share of a broker."""
    rows = tuple(
        BundleLoad(name, messages_in=topics * per_topic * 1000, topics=topics) for name, topics in bundles.items()
    )
    cpu = sum(bundles.values()) * per_topic
    return BrokerLoad(broker, rows, cpu=cpu, messages_in=cpu * 1000, bundle_count=len(rows))


class Cluster:
    """Brokers whose leader's decisions are carried out."""

    def __init__(self, *held: dict[str, int], per_topic: float = 0.0) -> None:
        self.held = {f"b{number}": dict(bundles) for number, bundles in enumerate(held)}
        self.per_topic = per_topic
        self.history = History()
        self.rounds = self.moves = 0

    @property
    def counts(self) -> list[int]:
        return [sum(bundles.values()) for bundles in self.held.values()]

    def round(self) -> int:
        """One round; answers how many bundles moved."""
        self.rounds += 1
        loads = [loaded(name, bundles, self.per_topic) for name, bundles in self.held.items()]
        actions = plan_moves(loads, LIMITS, NoIsolation(), self.history, self.rounds * ROUND_S)
        moved = 0
        for action in actions:
            if isinstance(action, Move):
                self.held[action.target][action.bundle] = self.held[action.source].pop(action.bundle)
                moved += 1
            else:
                topics = self.held[action.broker].pop(action.bundle)
                self.held[action.broker] |= {
                    f"{action.bundle}a": topics // 2,
                    f"{action.bundle}b": topics - topics // 2,
                }
        self.moves += moved
        return moved

    def until_even(self, most_rounds: int) -> None:
        while max(self.counts) - min(self.counts) > 4:
            assert self.rounds < most_rounds, self.counts
            self.round()


def test_a_broker_that_returned_gets_its_share_of_48_partitions_in_a_few_rounds() -> None:
    cluster = Cluster({"t/n/0": 13, "t/n/1": 12, "t/n/2": 12}, {"t/n/3": 11}, {})
    cluster.until_even(most_rounds=10)
    assert sum(cluster.counts) == 48
    for _ in range(5):  # those that were being evened out come within the inner threshold
        cluster.round()
    assert cluster.moves <= 8
    before = cluster.moves
    for _ in range(100):
        cluster.round()
    assert cluster.moves == before  # and that is all


def test_coordinators_are_not_moved_for_the_sake_of_counts() -> None:
    cluster = Cluster({f"weir/system/{n}": 1 for n in range(48)}, {}, {})
    for _ in range(10):
        cluster.round()
    assert cluster.counts == [48, 0, 0]


def test_small_differences_move_nothing() -> None:
    cluster = Cluster({f"t/n/{n}": 1 for n in range(18)}, {f"t/n/x{n}": 1 for n in range(15)}, {"t/n/y": 14})
    assert cluster.round() == 0


def test_a_move_for_counts_never_makes_the_load_uneven() -> None:
    """A broker with few topics has as much work as the others."""
    few = loaded("a", {"t/n/big": 1}, 0.4)
    many = loaded("b", {f"t/n/{n}": 2 for n in range(10)}, 0.02)
    actions = plan_moves([few, many], LIMITS, NoIsolation(), History(), 0.0)
    moved = [action for action in actions if isinstance(action, Move)]
    assert moved
    assert all(action.reason is Reason.COUNT for action in moved)
    assert sum(action.usage for action in moved) <= LIMITS.band + 1e-9


def test_nothing_is_moved_by_counts_while_bundles_are_not_all_known() -> None:
    some = replace(loaded("a", {f"t/n/{n}": 4 for n in range(10)}), bundle_count=11)
    assert plan_moves([some, loaded("b", {})], LIMITS, NoIsolation(), History(), 0.0) == []


def test_a_bundle_with_too_many_topics_is_split_first() -> None:
    actions = plan_moves(
        [loaded("a", {"t/n/0": 48}), loaded("b", {}), loaded("c", {})], LIMITS, NoIsolation(), History(), 0.0
    )
    assert actions == [Split("t/n/0", "a")]


@settings(max_examples=60, deadline=None)
@given(
    held=st.lists(st.lists(st.integers(1, 30), max_size=12), min_size=2, max_size=6),
    per_topic=st.sampled_from([0.0, 0.0001, 0.001]),
)
def test_whatever_there_is_gets_even_and_then_stays(held: list[list[int]], per_topic: float) -> None:
    cluster = Cluster(
        *({f"t/n/{b}-{n}": topics for n, topics in enumerate(some)} for b, some in enumerate(held)),
        per_topic=per_topic,
    )
    for _ in range(120):
        cluster.round()
    mean = sum(cluster.counts) / len(cluster.counts)
    outer = max(LIMITS.count_least, LIMITS.count_start * mean)
    if per_topic < 0.001:
        assert max(abs(count - mean) for count in cluster.counts) <= outer + 1
    before = cluster.moves
    for _ in range(60):
        cluster.round()
    assert cluster.moves == before
