"""Messages by their groups: against a model that keeps plain lists."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from weir.broker.subscriptions.ready_messages import MessageGroups

NOBODY = BitMap64()


def all_ready(groups: MessageGroups) -> Sequence[int]:
    return list(groups.within(1 << 40, 1 << 20)) if groups else []


def test_of_each_group_the_first_is_ready_and_what_has_none_waits_for_nobody() -> None:
    groups = MessageGroups(10, 100)
    groups.note(0, range(6), [b"a", b"b", b"a", None, b"a", b"b"], NOBODY)
    assert all_ready(groups) == [0, 1, 3]
    groups.remove([0, 1, 3])
    assert not groups
    assert groups.settled(0, 1)
    assert all_ready(groups) == [2]
    groups.add(BitMap64([1]))  # given back: it is still before 5
    assert all_ready(groups) == [1, 2]
    assert not groups.settled(3, 4)
    assert groups.settled(1, 3)
    assert all_ready(groups) == [4, 5]


def test_what_is_out_when_it_is_noted_holds_up_its_group() -> None:
    groups = MessageGroups(10, 100)
    groups.note(10, range(3), [b"a"] * 3, BitMap64([10]))
    assert not groups
    groups.add(BitMap64([10]))
    assert all_ready(groups) == [10]


def test_a_batch_of_one_key_is_not_taken_apart() -> None:
    groups = MessageGroups(10, 100)
    groups.note(0, range(3), b"a", NOBODY)
    groups.note(3, range(2), b"a", NOBODY)
    groups.note(5, range(1), b"a", NOBODY)
    assert all_ready(groups) == [0, 1, 2]
    groups.remove([0, 1, 2])
    assert not groups.settled(0, 2)
    groups.settled(4, 5)  # of those that wait
    assert not groups
    assert groups.settled(2, 3)
    assert all_ready(groups) == [3]
    assert groups.settled(3, 4)
    assert all_ready(groups) == [5]


def test_it_is_full_when_too_many_wait_or_there_are_too_many_groups() -> None:
    groups = MessageGroups(2, 3)
    groups.note(0, range(3), [b"a"] * 3, NOBODY)
    assert not groups.is_full()
    groups.note(3, range(1), b"a", NOBODY)
    assert groups.is_full()
    groups.settled(0, 4)
    assert not groups.is_full()
    groups.note(4, range(2), [b"a", b"b"], NOBODY)
    assert groups.is_full()


keys = st.sampled_from([None, b"a", b"b", b"c"])
steps = st.one_of(
    st.tuples(st.just("note"), st.lists(keys, min_size=1, max_size=6)),
    st.tuples(st.sampled_from(["give", "back"]), st.integers(0, 5)),
    st.tuples(st.just("settle"), st.tuples(st.integers(0, 40), st.integers(1, 5))),
    st.tuples(st.just("empty"), st.none()),
)


@given(st.lists(steps, max_size=40))
def test_it_is_what_a_list_of_each_group_says(script: list) -> None:
    groups, alive, out, end = MessageGroups(1000, 1000), {}, BitMap64(), 0

    def expected() -> list[int]:
        seen: set[bytes] = set()
        ready = []
        for offset, key in alive.items():
            if (key is None or key not in seen) and offset not in out:
                ready.append(offset)
            if key is not None:
                seen.add(key)
        return ready

    for step, value in script:
        if step == "note":
            groups.note(end, range(len(value)), value, NOBODY)
            alive |= {end + index: key for index, key in enumerate(value)}
            end += len(value)
        elif step == "give" and expected():
            offset = expected()[value % len(expected())]
            groups.remove([offset])
            out.add(offset)
        elif step == "back" and out:
            offset = list(out)[value % len(out)]
            groups.add(BitMap64([offset]))
            out.remove(offset)
        elif step == "settle":
            first, count = value
            before = expected()
            for offset in range(first, first + count):
                alive.pop(offset, None)
                out.discard(offset)
            assert groups.settled(first, first + count) == bool(set(expected()) - set(before))
        elif step == "empty":
            groups.empty(out)
            alive = {offset: key for offset, key in alive.items() if offset in out}
        assert all_ready(groups) == expected()


def turn(groups: MessageGroups, credit: int) -> list[int]:
    """What one consumer gets at once."""
    got: list[int] = []
    groups.begin_turn()
    while groups and len(got) < credit:
        found = list(groups.within(groups.first() + 1, credit - len(got)))
        groups.remove(found)
        got += found
    groups.end_turn()
    return got


def test_a_turn_brings_several_of_a_group_and_the_next_waits_for_all_of_them() -> None:
    groups = MessageGroups(10, 100)
    groups.note(0, range(6), [b"a", b"a", b"b", b"a", b"a", b"b"], NOBODY)
    assert turn(groups, 3) == [0, 1, 2]
    assert not groups
    assert not groups.settled(1, 2)
    assert groups.settled(0, 1)
    assert turn(groups, 10) == [3, 4]
    assert groups.settled(2, 3)
    assert turn(groups, 10) == [5]


def test_what_comes_back_of_a_turn_waits_for_the_rest_of_it() -> None:
    groups = MessageGroups(10, 100)
    groups.note(0, range(5), [b"a"] * 5, NOBODY)
    assert turn(groups, 4) == [0, 1, 2, 3]
    groups.add(BitMap64([2]))
    groups.add(BitMap64([0]))
    assert not groups
    assert not groups.settled(1, 2)
    groups.add(BitMap64([3]))
    assert all_ready(groups) == [0]
    assert turn(groups, 2) == [0, 2]
    assert groups.settled(0, 4)
    assert all_ready(groups) == [4]


def test_a_turn_may_be_settled_at_once() -> None:
    groups = MessageGroups(10, 100)
    groups.note(0, range(3), [b"a"] * 3, NOBODY)
    assert turn(groups, 3) == [0, 1, 2]
    assert not groups.settled(0, 3)
    assert not groups


def test_what_is_out_when_it_is_noted_ends_a_turn_before_it() -> None:
    groups = MessageGroups(10, 100)
    groups.note(0, range(3), [b"a"] * 3, BitMap64([1]))
    assert turn(groups, 3) == [0]
    assert not groups.settled(0, 1)
    assert not groups
    groups.add(BitMap64([1]))
    assert turn(groups, 3) == [1, 2]


def test_what_came_back_before_its_turn_is_dealt_with_the_others() -> None:
    groups = MessageGroups(10, 100)
    groups.note(0, range(3), [b"a"] * 3, BitMap64([1]))
    groups.add(BitMap64([1]))
    assert turn(groups, 3) == [0, 1, 2]


turns = st.one_of(
    st.tuples(st.just("note"), st.lists(keys, min_size=1, max_size=6)),
    st.tuples(st.just("note out"), st.lists(st.tuples(keys, st.booleans()), min_size=1, max_size=6)),
    st.tuples(st.just("turn"), st.integers(1, 8)),
    st.tuples(st.just("back"), st.lists(st.integers(0, 20), min_size=1, max_size=4)),
    st.tuples(st.just("settle"), st.tuples(st.integers(0, 40), st.integers(1, 5))),
    st.tuples(st.just("empty"), st.none()),
)


@given(st.lists(turns, max_size=40))
def test_turns_keep_each_group_in_order_and_lose_nothing(script: list) -> None:
    groups, alive, out, end = MessageGroups(1000, 1000), {}, BitMap64(), 0
    dealt: dict[bytes | None, set[int]] = {}  # of each group what of its turn may be out
    for step, value in script:
        if step == "note":
            groups.note(end, range(len(value)), value, NOBODY)
            alive |= {end + index: key for index, key in enumerate(value)}
            end += len(value)
        elif step == "note out":
            absent = BitMap64([end + index for index, (_, is_out) in enumerate(value) if is_out])
            groups.note(end, range(len(value)), [key for key, _ in value], absent)
            alive |= {end + index: key for index, (key, _) in enumerate(value)}
            out |= absent
            end += len(value)
        elif step == "turn":
            expected = []
            stopped = {key for key, offsets in dealt.items() if offsets}
            for offset, key in alive.items():
                if offset in out:
                    stopped.add(key)
                elif key is None or key not in stopped:
                    expected.append(offset)
            got = turn(groups, value)
            assert got == expected[:value]
            out.update(got)
            for offset in got:
                dealt.setdefault(alive[offset], set()).add(offset)
        elif step == "back" and out:
            some = BitMap64([list(out)[number % len(out)] for number in value])
            groups.add(some)
            out -= some
        elif step == "settle":
            first, count = value
            for offset in range(first, first + count):
                alive.pop(offset, None)
                out.discard(offset)
            groups.settled(first, first + count)
        elif step == "empty" and all(offset in dealt.get(alive[offset], ()) for offset in out):
            groups.empty(out)
            alive = {offset: key for offset, key in alive.items() if offset in out}
        dealt = {key: offsets for key, offsets in dealt.items() if not out.isdisjoint(BitMap64(offsets))}
    groups.add(out)
    assert turn(groups, 1 << 20) == list(alive)
