"""Bundles: names as Pulsar writes them, and boundaries without gaps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.cluster import LAST_HASH, Boundaries, BundleName, partition_hashes, topic_hash
from weir.model.errors import InvalidNameError, NotAllowedError
from weir.model.topics import NamespaceName, TopicName

SPACE = NamespaceName.parse("public/default")


def test_a_bundle_is_written_as_pulsar_writes_it() -> None:
    bundle = BundleName.parse("public/default/0x40000000_0x80000000")
    assert bundle == BundleName(SPACE, 0x40000000, 0x80000000)
    assert str(bundle) == "public/default/0x40000000_0x80000000"


@pytest.mark.parametrize("text", ["a/b", "a/b/0x0_0x1", "a/b/0x80000000_0x40000000", "0x00000000_0xffffffff", ""])
def test_what_is_no_bundle_is_refused(text: str) -> None:
    with pytest.raises(InvalidNameError):
        BundleName.parse(text)


def test_four_even_bundles_are_those_that_pulsar_has() -> None:
    assert [bundle.range for bundle in Boundaries.even(4).bundles(SPACE)] == [
        "0x00000000_0x40000000",
        "0x40000000_0x80000000",
        "0x80000000_0xc0000000",
        "0xc0000000_0xffffffff",
    ]


@given(st.text("abcdefgh", min_size=1, max_size=12), st.integers(1, 50), st.lists(st.integers(1, LAST_HASH - 1)))
def test_a_topic_is_in_exactly_one_bundle_however_they_are_split(name: str, count: int, cuts: list[int]) -> None:
    boundaries = Boundaries.even(count)
    for cut in cuts:
        whole = next(b for b in boundaries.bundles(SPACE) if b.has_hash(cut))
        boundaries = boundaries.split(whole, cut)
    topic = TopicName.parse(name)
    holding = [bundle for bundle in boundaries.bundles(SPACE) if bundle.holds(topic)]
    assert holding == [boundaries.bundle_of(topic)]
    assert boundaries.has(holding[0])


def test_the_last_hash_is_in_the_last_bundle() -> None:
    assert Boundaries.even(2).bundles(SPACE)[-1].has_hash(LAST_HASH)
    assert not Boundaries.even(2).bundles(SPACE)[0].has_hash(0x80000000)


def test_partitions_have_hashes_of_their_own() -> None:
    assert topic_hash(TopicName.parse("t-partition-0")) != topic_hash(TopicName.parse("t-partition-1"))


def test_a_split_is_within_the_bundle_and_of_one_that_there_is() -> None:
    boundaries = Boundaries.even(2)
    first = boundaries.bundles(SPACE)[0]
    assert [half.range for half in first.halves()] == ["0x00000000_0x40000000", "0x40000000_0x80000000"]
    with pytest.raises(NotAllowedError):
        first.halves(0x90000000)
    again = boundaries.split(first, 0x10000000)
    assert again.split(first, 0x10000000) is again
    with pytest.raises(NotAllowedError):
        again.split(first, 0x20000000)


@pytest.mark.parametrize("points", [(), (0,), (0, 5), (5, LAST_HASH), (0, 7, 7, LAST_HASH)])
def test_boundaries_have_no_gaps(points: tuple[int, ...]) -> None:
    with pytest.raises(InvalidNameError):
        Boundaries(points)


@given(st.text(min_size=1, max_size=12).filter(lambda text: text.isprintable()), st.lists(st.integers(0, 999_999)))
def test_partitions_are_hashed_together_as_each_alone(name: str, partitions: list[int]) -> None:
    topic = TopicName(SPACE, name)
    assert partition_hashes(topic, partitions) == [topic_hash(topic.at(index)) for index in partitions]
