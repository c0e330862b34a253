"""What a round of balance decides: who gives what to whom, and when nothing is moved."""

from collections.abc import Set
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.broker.balance.balance_plan import plan_moves
from weir.broker.balance.balance_round import (
    Action,
    BalanceLimits,
    History,
    Move,
    NoIsolation,
    Reason,
    Split,
    water_level,
)
from weir.model.cluster import BrokerLoad, BundleLoad

#: By load alone: counts of topics have tests of their own.
LIMITS = BalanceLimits(count_least=inf)


def broker(name: str, *shares: float, namespace: str = "t/n", topics: int = 1, **facts: object) -> BrokerLoad:
    """A broker whose bundles, named after it, use these shares of it; a message per second is a thousandth."""
    bundles = tuple(
        BundleLoad(f"{namespace}/{name}-{n}", messages_in=share * 1000, topics=topics)
        for n, share in enumerate(shares)
    )
    load = BrokerLoad(name, bundles, cpu=sum(shares), messages_in=sum(shares) * 1000, bundle_count=len(bundles))
    return replace(load, **facts)  # type: ignore[arg-type]


class Bound:
    """Namespaces that only some brokers may have; the others may have those of nobody else."""

    def __init__(self, **groups: set[str]) -> None:
        self._groups = {name.replace("_", "/"): frozenset(group) for name, group in groups.items()}

    def allowed(self, namespace: str, live: frozenset[str]) -> Set[str]:
        group = self._groups.get(namespace)
        return live if group is None else (group & live or live)


class Leader:
    """Rounds one after the other, with a history."""

    def __init__(self, limits: BalanceLimits = LIMITS, isolation: Bound | NoIsolation | None = None) -> None:
        self.limits = limits
        self.history = History()
        self.isolation = isolation or NoIsolation()
        self.now = 0.0

    def round(self, *loads: BrokerLoad, after_s: float = 30.0) -> list[Action]:
        self.now += after_s
        return plan_moves(loads, self.limits, self.isolation, self.history, self.now)


def carried_out(loads: list[BrokerLoad], actions: list[Action]) -> list[BrokerLoad]:
    """The loads after the moves."""
    bundles = {load.broker_id: {b.bundle: b for b in load.bundles} for load in loads}
    for action in actions:
        if isinstance(action, Move):
            bundles[action.target][action.bundle] = bundles[action.source].pop(action.bundle)
    return [
        replace(
            load,
            bundles=tuple(held.values()),
            cpu=sum(b.messages for b in held.values()) / 1000,
            messages_in=sum(b.messages for b in held.values()),
            bundle_count=len(held),
        )
        for load in loads
        for held in [bundles[load.broker_id]]
    ]


def test_a_hot_broker_gives_to_the_coldest_what_brings_it_near_the_mean() -> None:
    loads = [broker("a", 0.3, 0.3, 0.1), broker("b", 0.3), broker("c", 0.1)]
    actions = Leader().round(*loads)
    assert actions == [Move("t/n/a-0", "a", "c", Reason.HOT, pytest.approx(0.3))]
    assert sorted(load.cpu for load in carried_out(loads, actions)) == pytest.approx([0.3, 0.4, 0.4])


def test_nothing_is_moved_while_all_are_within_the_outer_threshold() -> None:
    assert Leader().round(broker("a", 0.29, 0.29), broker("b", 0.4), broker("c", 0.42)) == []


def test_an_idle_cluster_is_left_alone_however_unlike_its_brokers_are() -> None:
    assert Leader().round(broker("a", *[0.004] * 20), broker("b"), broker("c")) == []


def test_a_broker_that_was_hot_is_relieved_until_it_is_within_the_inner_threshold() -> None:
    """The same loads move nothing if nobody was hot before."""
    warm = [broker("a", *[0.06] * 8), broker("b", *[0.05] * 8), broker("c", *[0.041] * 8)]
    leader = Leader(replace(LIMITS, broker_pause_s=0, moves_from_broker=1))
    assert leader.round(*warm) == []
    hot = [broker("a", *[0.06] * 9), *warm[1:]]
    assert len(leader.round(*hot)) == 1
    assert [type(action) for action in leader.round(*warm)] == [Move]
    assert leader.round(broker("a", *[0.06] * 7), *warm[1:]) == []


def test_a_move_never_makes_the_target_the_next_hottest() -> None:
    assert Leader().round(broker("a", 0.8), broker("b", 0.1), broker("c", 0.1)) == []


def test_a_bundle_that_was_moved_stays_for_its_pause() -> None:
    leader = Leader()
    first = leader.round(broker("a", 0.3, 0.3), broker("b"), after_s=0)
    assert [action.bundle for action in first] == ["t/n/a-0"]
    there = BundleLoad("t/n/a-0", messages_in=300)
    back = [broker("a"), BrokerLoad("b", (there,), 0.6, messages_in=600.0)]
    assert leader.round(*back, after_s=LIMITS.bundle_pause_s - 1) == []
    assert [action.bundle for action in leader.round(*back, after_s=1)] == ["t/n/a-0"]


def test_a_broker_that_gave_or_got_is_measured_anew_first() -> None:
    leader = Leader(replace(LIMITS, moves_from_broker=1))
    assert len(leader.round(broker("a", *[0.1] * 8), broker("b"), broker("c"), after_s=0)) == 1
    rest = [broker("a", *[0.1] * 7), broker("b"), broker("c")]
    assert leader.round(*rest, after_s=LIMITS.broker_pause_s - 1) == []
    assert len(leader.round(*rest, after_s=1)) == 1


def test_moves_that_gain_too_little_together_are_not_made() -> None:
    tiny = [broker("a", 0.5, *[0.002] * 40), broker("b", 0.4), broker("c", 0.3)]
    assert Leader().round(*tiny) == []
    assert len(Leader(replace(LIMITS, min_gain=0.008)).round(*tiny)) == LIMITS.moves_from_broker


def test_many_small_bundles_that_gain_enough_together_are_moved() -> None:
    assert len(Leader().round(broker("a", *[0.004] * 100), broker("b"))) == LIMITS.moves_to_broker


def test_a_round_makes_no_more_moves_than_it_may() -> None:
    loads = [broker(f"hot{n}", *[0.1] * 8) for n in range(10)] + [broker(f"cold{n}") for n in range(10)]
    assert len(Leader(replace(LIMITS, moves_per_round=7, moves_share=0)).round(*loads)) == 7
    assert len(Leader(replace(LIMITS, moves_per_round=1, moves_share=0.5)).round(*loads)) == 10


def test_a_round_makes_as_many_moves_as_brokers_are_uneven_up_to_a_share_of_all() -> None:
    even = [broker(f"even{n}", *[0.05] * 8) for n in range(40)]
    uneven = [broker(f"hot{n}", *[0.1] * 8) for n in range(4)] + [broker(f"cold{n}") for n in range(4)]
    limits = replace(LIMITS, moves_per_round=1)
    assert len(Leader(limits).round(*even, *uneven)) == 8
    assert len(Leader(replace(limits, moves_share=0.1)).round(*even, *uneven)) == 4
    assert Leader(limits).round(*even) == []


def test_a_broker_that_is_full_of_crumbs_gives_more_of_them_and_another_keeps_them() -> None:
    full = broker("a", *[0.001] * 950)
    assert len(Leader().round(full, broker("b"), broker("c"), broker("d"), broker("e"))) > LIMITS.moves_from_broker
    assert Leader().round(broker("a", *[0.001] * 600), broker("b", *[0.1] * 4), broker("c", *[0.1] * 4)) == []


def test_what_fits_nowhere_is_split_where_it_is() -> None:
    """The others have no room for a quarter of a broker, and would have for an eighth."""
    loads = [broker("a", *[0.25] * 3, topics=4), *(broker(f"b{n}", *[0.1] * 5) for n in range(9))]
    assert set(Leader().round(*loads)) == {Split("t/n/a-2", "a")}
    assert Leader().round(replace(loads[0], bundles=broker("a", *[0.25] * 3).bundles), *loads[1:]) == []


def test_unbound_work_leaves_a_group_that_needs_its_brokers_and_bound_work_stays() -> None:
    """All are as busy as the group's mean: it is the level of the unbound work that the group is above."""
    mixed = [
        BrokerLoad(name, (*bound.bundles, *free.bundles), 0.8, messages_in=800.0)
        for name in ("a", "b")
        for bound, free in [(broker(name, *[0.1] * 5), broker(name, *[0.1] * 3, namespace="t/free"))]
    ]
    others = [broker(f"c{n}", *[0.1] * 3, namespace="t/free") for n in range(8)]
    actions = Leader(isolation=Bound(t_n={"a", "b"})).round(*mixed, *others)
    assert {action.bundle[:6] for action in actions} == {"t/free"}
    assert {(action.source, action.target[0]) for action in actions if isinstance(action, Move)} == {
        ("a", "c"),
        ("b", "c"),
    }


def test_within_a_group_brokers_are_evened_out_though_all_of_them_are_above_the_others() -> None:
    group = [broker("a", *[0.08] * 10), *(broker(f"b{n}", *[0.08] * 7) for n in range(4))]
    others = [broker(f"c{n}", *[0.05] * 4, namespace="t/free") for n in range(20)]
    actions = Leader(isolation=Bound(t_n={load.broker_id for load in group})).round(*group, *others)
    assert [(action.source, action.target[0]) for action in actions if isinstance(action, Move)] == [
        ("a", "b")
    ] * 2


@given(st.lists(st.floats(0, 10), min_size=1, max_size=9), st.floats(0, 20))
def test_the_level_is_where_all_of_the_work_has_found_room(ground: list[float], water: float) -> None:
    level = water_level(ground, water)
    assert sum(max(0.0, level - height) for height in ground) == pytest.approx(water, abs=1e-6)


def test_an_empty_broker_gets_its_share_bit_by_bit_from_those_above_the_mean() -> None:
    loads = [broker(f"b{n}", *[0.03] * (14 + n % 3)) for n in range(12)] + [broker("new")]
    leader = Leader()
    usage, targets = [], set()
    for _ in range(30):
        actions = leader.round(*loads, after_s=LIMITS.broker_pause_s)
        assert len(actions) <= LIMITS.moves_to_broker
        targets |= {action.target for action in actions if isinstance(action, Move)}
        loads = carried_out(loads, actions)
        usage.append(loads[-1].cpu)
    mean = sum(load.cpu for load in loads) / len(loads)
    assert targets == {"new"}
    assert usage[0] < mean / 2
    assert usage[-1] > mean - LIMITS.start


def test_a_drained_broker_gives_everything_and_gets_nothing() -> None:
    leader = Leader(replace(LIMITS, evictions_per_round=3))
    loads = [broker("a", *[0.01] * 5, draining=True), broker("b", 0.3), broker("c", 0.3)]
    first = leader.round(*loads)
    assert [(type(action), action.bundle[:5]) for action in first] == [(Move, "t/n/a")] * 3
    loads = carried_out(loads, first)
    second = leader.round(*loads)
    assert len(second) == 2
    assert leader.round(*carried_out(loads, second)) == []
    assert {action.target for action in (*first, *second) if isinstance(action, Move)} == {"b", "c"}


def test_bundles_without_load_are_spread_over_all_that_may_have_them() -> None:
    actions = Leader().round(broker("a", *[0.0] * 60, draining=True), broker("b"), broker("c"), broker("d"))
    given = [action.target for action in actions if isinstance(action, Move)]
    assert {target: given.count(target) for target in given} == {"b": 20, "c": 20, "d": 20}


def test_a_bound_namespace_moves_within_its_group_alone() -> None:
    leader = Leader(isolation=Bound(t_n={"a", "b"}))
    loads = [broker("a", *[0.2] * 4), broker("b", 0.2), broker("c", namespace="t/other")]
    actions = leader.round(*loads)
    assert {action.target for action in actions if isinstance(action, Move)} == {"b"}


def test_a_bundle_outside_of_its_group_is_brought_home() -> None:
    actions = Leader(isolation=Bound(t_n={"b"})).round(broker("a", 0.01), broker("b", 0.6), broker("c"))
    assert actions == [Move("t/n/a-0", "a", "b", Reason.ISOLATION, pytest.approx(0.01))]


def test_a_bound_namespace_falls_back_when_its_group_is_gone_and_stays_while_it_comes_and_goes() -> None:
    leader = Leader(isolation=Bound(t_n={"b"}))
    assert [action.bundle for action in leader.round(broker("a", 0.01), broker("b", 0.2))] == ["t/n/a-0"]
    gone = BrokerLoad("b", (BundleLoad("t/n/a-0", 10),), 0.01, messages_in=10, draining=True)
    assert leader.round(gone, broker("a"), broker("c")) == [
        Move("t/n/a-0", "b", "a", Reason.DRAIN, pytest.approx(0.01))
    ]
    assert leader.round(broker("a", 0.01), broker("b", 0.2)) == []


@pytest.mark.parametrize(
    "hot",
    [
        BundleLoad("t/n/x", messages_in=LIMITS.split_messages_per_s, messages_out=1, topics=2),
        BundleLoad("t/n/x", bytes_out=LIMITS.split_bytes_per_s + 1, topics=2),
        BundleLoad("t/n/x", topics=LIMITS.split_topics + 1),
    ],
)
def test_a_bundle_over_a_limit_is_split_where_it_is(hot: BundleLoad) -> None:
    load = BrokerLoad("a", (hot, BundleLoad("t/n/y", topics=9)), 0.2, messages_in=1e6)
    assert Leader().round(load, broker("b")) == [Split("t/n/x", "a")]
    assert Leader().round(replace(load, bundles=(replace(hot, topics=1),)), broker("b")) == []


def test_a_bundle_that_is_too_much_of_its_broker_is_split_and_not_moved_in_the_same_round() -> None:
    actions = Leader().round(broker("a", 0.4, 0.4, topics=5), broker("b"))
    assert actions == [Split("t/n/a-0", "a"), Split("t/n/a-1", "a")]


def test_a_namespace_has_no_more_bundles_than_it_may() -> None:
    limits = replace(LIMITS, bundles_per_namespace=4)
    full = broker("a", 0.5, 0.01, topics=2)
    assert [type(action) for action in Leader(limits).round(full, broker("b", 0.5))] == [Split]
    assert Leader(limits).round(full, broker("b", 0.4, 0.1)) == []


def test_a_broker_short_of_memory_gets_nothing_and_gives_a_bundle_now_and_then() -> None:
    leader = Leader()
    full = broker("a", 0.05, 0.05, memory=LIMITS.memory_full)
    loads = [full, broker("b", 0.1, 0.1), broker("c", 0.1)]
    assert leader.round(*loads) == [Move("t/n/a-1", "a", "c", Reason.MEMORY, pytest.approx(0.05))]
    after = [replace(full, bundles=full.bundles[:1]), *loads[1:]]
    assert leader.round(*after, after_s=LIMITS.broker_pause_s) == []


def test_of_brokers_that_are_nearly_full_the_fullest_is_relieved_though_it_is_near_the_mean() -> None:
    loads = [broker("a", *[0.05] * 19), *(broker(f"b{n}", *[0.05] * 17) for n in range(4))]
    assert [action.source for action in Leader().round(*loads) if isinstance(action, Move)] == ["a"]


def test_what_the_network_can_take_counts_like_cpu_where_the_operator_says_so() -> None:
    fat = BundleLoad("t/n/x", bytes_out=4e8, topics=1)
    loads = [
        BrokerLoad("a", (fat, replace(fat, bundle="t/n/y")), 0.1, bytes_out=8e8),
        broker("b", 0.1),
    ]
    assert Leader().round(*loads) == []
    assert len(Leader(replace(LIMITS, broker_bytes_per_s=1e9, split_bytes_per_s=1e9)).round(*loads)) == 1


clusters = st.lists(
    st.lists(st.sampled_from([0.0, 0.001, 0.02, 0.05, 0.1, 0.3]), max_size=12), min_size=2, max_size=8
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(clusters, st.sets(st.integers(0, 7), max_size=3))
def test_every_round_keeps_its_bounds_and_rounds_come_to_rest(
    shares: list[list[float]], drained: set[int]
) -> None:
    """No bundle is moved again before it has rested, nobody is further from the mean than before and than the band
    allows, and at the end nothing is left to do."""
    loads = [broker(f"b{n}", *mine, draining=n in drained) for n, mine in enumerate(shares)]
    leader = Leader()
    moved: dict[str, float] = {}
    for _ in range(120):
        before = {load.broker_id: load.cpu for load in loads}
        actions = leader.round(*loads, after_s=LIMITS.broker_pause_s)
        for action in actions:
            assert leader.now - moved.get(action.bundle, -LIMITS.bundle_pause_s) >= LIMITS.bundle_pause_s
            moved[action.bundle] = leader.now
        loads = carried_out(loads, actions)
        takers = [load for load in loads if not load.draining]
        if not takers or any(isinstance(a, Move) and a.reason is Reason.DRAIN for a in actions):
            continue
        mean = sum(load.cpu for load in takers) / len(takers)
        for load in takers:
            if load.cpu != pytest.approx(before[load.broker_id]):
                assert abs(load.cpu - mean) <= max(LIMITS.band, abs(before[load.broker_id] - mean)) + 1e-9
    assert actions == []
