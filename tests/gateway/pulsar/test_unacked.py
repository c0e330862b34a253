"""Which offsets message ids and ack sets stand for."""

from random import Random

import pytest

from weir.gateway.pulsar.acknowledgments import MOST_BATCHES, Unacked, joined, ranges_of

PLACE = (7, 10)


def test_bits_become_ranges() -> None:
    assert ranges_of(100, 0) == []
    assert ranges_of(100, 0b1) == [(100, 101)]
    assert ranges_of(100, 0b1101100) == [(102, 104), (105, 107)]
    dice = Random(1)
    for _ in range(500):
        bits = dice.getrandbits(200)
        offsets = [at for first, end in ranges_of(5, bits) for at in range(first, end)]
        assert offsets == [5 + at for at in range(200) if bits >> at & 1]


def test_neighbours_are_joined() -> None:
    assert joined([]) == []
    assert joined([(0, 2), (2, 3), (5, 6), (6, 9), (3, 5)]) == [(0, 3), (5, 9), (3, 5)]


def test_a_whole_batch() -> None:
    unacked = Unacked()
    unacked.delivered(PLACE, 50, 5, None)
    assert unacked.messages == 5
    assert unacked.ack(PLACE) == [(50, 55)]
    assert unacked.ack(PLACE) is None
    assert len(unacked) == 0


def test_a_batch_bit_by_bit() -> None:
    unacked = Unacked()
    unacked.delivered(PLACE, 50, 5, None)
    assert unacked.ack(PLACE, 0b11101) == [(51, 52)]
    assert unacked.ack(PLACE, 0b11101) == []
    assert unacked.ack(PLACE, 0b10111) == [(53, 54)]  # what was acknowledged before stays so
    assert unacked.messages == 3
    assert unacked.ack(PLACE, 1 << 70) == [(50, 51), (52, 53), (54, 55)]
    assert len(unacked) == 0


def test_what_was_for_others_is_not_acknowledged() -> None:
    unacked = Unacked()
    unacked.delivered(PLACE, 50, 6, 0b010101)
    assert unacked.messages == 3
    assert unacked.ack(PLACE, 0b111110) == [(50, 51)]
    assert unacked.ack(PLACE) == [(52, 53), (54, 55)]


def test_everything_before_an_offset() -> None:
    unacked = Unacked()
    for at in range(5):
        unacked.delivered((7, at), at, 1, None)
    unacked.ack_before(3)
    assert [unacked.get((7, at)) is None for at in range(5)] == [True, True, True, False, False]


def test_what_is_given_back_is_what_awaits_its_answer() -> None:
    unacked = Unacked()
    unacked.delivered(PLACE, 50, 4, None)
    unacked.ack(PLACE, 0b1101)
    assert unacked.give_back(PLACE) == [(50, 51), (52, 54)]
    assert unacked.give_back(PLACE) == []


@pytest.mark.slow
def test_what_a_client_never_acknowledges_does_not_grow_without_end() -> None:
    unacked = Unacked()
    for number in range(MOST_BATCHES + 10):
        unacked.delivered((1, number), number, 1, None)
    assert len(unacked) == MOST_BATCHES
    assert unacked.get((1, 9)) is None
    assert unacked.get((1, 10)) is not None


def test_parts_of_a_batch_that_come_one_after_the_other_are_acknowledged_once_all_are_answered() -> None:
    """The second one took the place of the first: acknowledging that acknowledged what was not processed."""
    unacked = Unacked()
    unacked.delivered((1, 0), 100, 4, 0b0011)
    unacked.delivered((1, 0), 100, 4, 0b1100)  # keys of a consumer that has left
    assert unacked.messages == 4
    assert unacked.ack((1, 0)) == []  # of which part only the client knows
    assert unacked.ack((1, 0)) == [(100, 104)]
    assert len(unacked) == 0


def test_an_ack_set_tells_which_part_of_a_batch_it_is_about() -> None:
    unacked = Unacked()
    unacked.delivered((1, 0), 100, 4, 0b0011)
    unacked.delivered((1, 0), 100, 4, 0b1100)
    assert unacked.ack((1, 0), 0b1000) == [(102, 103)]
    assert unacked.ack((1, 0), 0b0010) == [(100, 101)]
    assert (unacked.ack((1, 0)), unacked.ack((1, 0))) == ([], [(101, 102), (103, 104)])


def test_all_parts_of_a_batch_are_given_back_together() -> None:
    unacked = Unacked()
    unacked.delivered((1, 0), 100, 4, 0b0001)
    unacked.delivered((1, 0), 100, 4, 0b1000)
    unacked.ack((1, 0))
    assert unacked.give_back((1, 0)) == [(100, 101), (103, 104)]
    unacked.delivered((1, 0), 100, 4, 0b1001)
    assert unacked.ack((1, 0)) == [(100, 101), (103, 104)]


def test_the_same_messages_again_are_a_delivery_anew_and_one_answer_is_enough() -> None:
    unacked = Unacked()
    for wanted in (None, None, 0b1110, 0b1100):
        unacked.delivered((1, 0), 100, 4, wanted)
    assert unacked.ack((1, 0)) == [(102, 104)]
    assert len(unacked) == 0
