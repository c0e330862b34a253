"""Keys to consumers, as pure functions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.broker.subscriptions.in_flight import Pieces, piece_at, union_of
from weir.broker.subscriptions.selectors import HASHES, Ranges, Ring, hash_of, murmur3_32, split_by_hash
from weir.model.batch import Batch, BatchFormat, bits_at
from weir.model.errors import HashRangesError


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"hello", 0x248BFA47),
        (b"hello, world", 0x149BBB7F),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
        (b"test", 0xBA6BD213),
    ],
)
def test_murmur3_gives_the_published_values(data: bytes, expected: int) -> None:
    assert murmur3_32(data) == expected


def ring_of(consumers: dict[int, str]) -> Ring:
    ring = Ring()
    for number, name in consumers.items():
        ring.add(number, name)
    return ring


def within(key_hash: int, ranges: list[tuple[int, int]]) -> bool:
    return any(first <= key_hash <= last for first, last in ranges)


@given(
    st.sets(st.text("abcdef0123", min_size=1, max_size=6), min_size=1, max_size=8),
    st.text("abcdef0123", max_size=6),
)
def test_one_that_comes_or_goes_moves_only_its_own_keys(names: set[str], newcomer: str) -> None:
    before = dict(enumerate(sorted(names - {newcomer}) or ["x"]))
    ring = ring_of(before)
    some = range(0, HASHES, 97)
    owners = {key_hash: ring.owner(key_hash) for key_hash in some}
    moved = ring.add(99, newcomer)
    assert {h for h in some if ring.owner(h) == 99} == {h for h in some if within(h, moved.ranges)}
    for key_hash in some:
        assert ring.owner(key_hash) in (owners[key_hash], 99)
        assert ring.owner(key_hash) == owners[key_hash] or owners[key_hash] in moved.owners
    assert sorted(ring.remove(99)) == sorted(moved.ranges)
    assert {key_hash: ring.owner(key_hash) for key_hash in some} == owners


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.sampled_from("aab")), max_size=25))
def test_the_ring_depends_on_its_consumers_alone_and_equal_names_have_points_of_their_own(steps: Any) -> None:
    ring = Ring()
    there: dict[int, str] = {}
    for joins, number, name in steps:
        if joins and number not in there:
            ring.add(number, name)
            there[number] = name
        elif not joins and number in there:
            ring.remove(number)
            del there[number]
    owners = {ring.owner(key_hash) for key_hash in range(0, HASHES, 7)}
    assert owners == (set(there) or {None})


def test_each_of_many_consumers_owns_some_keys() -> None:
    ring = Ring()
    for number in range(2000):
        ring.add(number, "the same name")
    owned = [0] * 2000
    for key_hash in range(HASHES):
        owned[ring.owner(key_hash) or 0] += 1
    assert sum(1 for count in owned if not count) < 20


def test_the_ring_divides_the_hashes_in_fair_shares() -> None:
    ring = ring_of({i: f"consumer-{i}" for i in range(4)})
    shares = [0] * 4
    for key_hash in range(HASHES):
        shares[ring.owner(key_hash) or 0] += 1
    assert min(shares) > HASHES / 4 * 0.6


def test_sticky_ranges_own_their_hashes_and_nobody_owns_the_rest() -> None:
    ranges = Ranges()
    ranges.add(1, "a", [(0, 9), (100, 199)])
    assert ranges.add(2, "b", [(10, 10), (200, 65535)]).ranges == [(10, 10), (200, 65535)]
    assert [ranges.owner(h) for h in (0, 9, 10, 11, 99, 100, 199, 200, 65535)] == [1, 1, 2, None, None, 1, 1, 2, 2]


@pytest.mark.parametrize("ranges", [[(0, 5), (5, 9)], [(-1, 3)], [(7, 6)], [(0, 65536)], [(0, 9), (2, 3)]])
def test_malformed_or_overlapping_ranges_are_refused(ranges: list[tuple[int, int]]) -> None:
    of_one, of_several = Ranges(), Ranges()
    with pytest.raises(HashRangesError):
        of_one.add(1, "a", ranges)
    assert {of_one.owner(key_hash) for key_hash in range(HASHES)} == {None}  # nothing has changed
    with pytest.raises(HashRangesError):
        for number, one in enumerate(ranges):
            of_several.add(number, "a", [one])


@given(
    st.lists(st.sampled_from([b"a", b"b", b"c", None]), min_size=1, max_size=9), st.integers(0, 511) | st.none()
)
def test_a_batch_of_many_keys_is_divided_without_loss(keys: list[bytes | None], wanted: int | None) -> None:
    whole = (1 << len(keys)) - 1
    mask = None if wanted is None else wanted & whole
    parts = split_by_hash(keys, mask)
    seen = 0
    for key_hash, part in parts:
        bits = whole if part is None else bits_at(part, len(keys))
        assert not seen & bits
        seen |= bits
        assert all(hash_of(key or b"") == key_hash for i, key in enumerate(keys) if bits >> i & 1)
    assert seen == (whole if mask is None else mask)


@pytest.mark.slow
def test_a_batch_with_a_key_for_each_of_its_messages_has_pieces_no_larger_than_itself() -> None:
    """Else 50,000 keys in one batch were 50,000 masks of 50,000 bits, and looking for each among all others took
    minutes of the event loop."""
    count = 50_000
    batch = Batch(7, count, BatchFormat.KAFKA, 0, b"")
    parts = split_by_hash([b"%d" % at for at in range(count)], None)
    pieces = Pieces()
    for key_hash, at in parts:
        piece = piece_at(batch, at, key_hash)
        assert piece.at is not None
        pieces.add(piece)
    assert len(list(pieces)) == len(parts) > 20_000
    assert pieces.messages == count
    gone = pieces.cut_all([(7 + at, 8 + at) for at in range(0, count, 2)])
    assert sum(piece.cost for piece in gone) == pieces.messages == count // 2
    assert union_of(gone) == bits_at(range(0, count, 2), count)
    assert sum(piece.cost for piece in pieces.cut(7, 7 + count)) == count // 2
    assert not len(pieces)
