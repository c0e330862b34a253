"""Partitions are chosen as the official clients choose them."""

import pytest

from weir.client.pulsar.client import Router, java_hash


@pytest.mark.parametrize(
    ("text", "number"),
    [("", 0), ("a", 97), ("hello", 99162322), ("key-1", 101943363), ("€", 8364), ("😀", 1772899)],
)
def test_text_hashes_as_in_java(text: str, number: int) -> None:
    assert java_hash(text) == number


def test_a_negative_hash_is_made_positive() -> None:
    assert java_hash("polygenelubricants") == 0x80000000 & 0x7FFFFFFF
    assert 0 <= java_hash("zzzzzzzzzz" * 5) < 2**31


def test_a_key_always_goes_to_the_same_partition_and_others_take_turns() -> None:
    router = Router(4, first=6)
    assert [router.choose(None) for _ in range(5)] == [2, 3, 0, 1, 2]
    assert {router.choose("hello") for _ in range(3)} == {99162322 % 4}
