"""Ranges are cut for parallel reads without losing or doubling an offset, and shortened fairly."""

from hypothesis import given
from hypothesis import strategies as st

from weir.client.kafka.cluster import Partition
from weir.spark.source.planning import Range, limited, split

ranges = st.lists(
    st.builds(
        lambda index, start, size: Range(Partition("t", index), start, start + size),
        st.integers(0, 5),
        st.integers(0, 1000),
        st.integers(0, 5000),
    ),
    max_size=5,
    unique_by=lambda one: one.partition,
)


@given(ranges, st.none() | st.integers(1, 50), st.none() | st.integers(1, 3000))
def test_pieces_cover_every_offset_once(given: list[Range], least: int | None, most: int | None) -> None:
    found = split(given, least, most)
    for one in given:
        pieces = [piece for piece in found if piece.partition == one.partition]
        assert [offset for piece in pieces for offset in (piece.start, piece.end)][1:-1:2] == [
            piece.start for piece in pieces
        ][1:]
        if one.size:
            assert (pieces[0].start, pieces[-1].end) == (one.start, one.end)
        assert sum(piece.size for piece in pieces) == one.size
    assert all(piece.size > 0 for piece in found)
    if most is not None:
        assert all(piece.size <= most for piece in found)


def test_a_large_partition_is_split_in_more_pieces_than_a_small_one() -> None:
    large, small = Range(Partition("t", 0), 0, 900), Range(Partition("t", 1), 0, 100)
    found = split([large, small], 10, None)
    assert [piece.partition.index for piece in found] == [0] * 9 + [1]


def test_without_being_asked_only_what_is_very_large_is_split() -> None:
    assert len(split([Range(Partition("t", 0), 0, 900_000)], None, None)) == 1
    assert len(split([Range(Partition("t", 0), 0, 4_000_000)], None, None)) == 4


amounts = st.dictionaries(st.integers(0, 8).map(lambda index: Partition("t", index)), st.integers(0, 10_000))


@given(amounts, amounts, st.integers(1, 5000))
def test_a_limit_is_shared_in_proportion_and_everybody_moves(
    starts: dict[Partition, int], sizes: dict[Partition, int], most: int
) -> None:
    starts = {partition: starts.get(partition, 0) for partition in sizes}
    ends = {partition: starts[partition] + size for partition, size in sizes.items()}
    found = limited(starts, ends, most)
    assert sum(found[p] - starts[p] for p in found) <= max(most, 0) + len(found)
    for partition, end in ends.items():
        assert starts[partition] <= found[partition] <= end
        assert (found[partition] > starts[partition]) == (end > starts[partition])


def test_nothing_is_held_back_below_the_limit() -> None:
    ends = {Partition("t", 0): 10, Partition("t", 1): 5}
    assert limited({Partition("t", 0): 0, Partition("t", 1): 5}, ends, 10) == ends
