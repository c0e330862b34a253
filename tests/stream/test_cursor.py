"""A cursor against the plainest model there is: a set of offsets."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from weir.model.errors import WireError
from weir.stream.cursor import Cursor
from weir.testing.kinds import rounds

offsets = st.integers(0, 120)


class CursorModel(RuleBasedStateMachine):
    """Every operation on a cursor and on a set; they must always agree."""

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor()
        self.acked: set[int] = set()

    @rule(first=offsets, count=st.integers(0, 20))
    def ack(self, first: int, count: int) -> None:
        new = set(range(first, first + count)) - self.acked
        assert self.cursor.ack(first, first + count) == bool(new)
        self.acked |= new

    @rule(offset=offsets)
    def ack_up_to(self, offset: int) -> None:
        self.cursor.ack_up_to(offset)
        self.acked |= set(range(offset + 1))

    @rule(offset=offsets)
    def reset(self, offset: int) -> None:
        self.cursor.reset(offset)
        self.acked = set(range(offset))

    @rule()
    def persist(self) -> None:
        self.cursor = Cursor.from_bytes(self.cursor.to_bytes())

    @invariant()
    def agrees(self) -> None:
        first_hole = next(i for i in range(300) if i not in self.acked)
        assert self.cursor.mark_delete == first_hole - 1
        assert self.cursor.holes == len([o for o in self.acked if o >= first_hole])
        for offset in (0, 7, 64, 119, 140):
            assert self.cursor.is_acked(offset) == (offset in self.acked)
            assert self.cursor.next_unacked(offset) == next(i for i in range(offset, 400) if i not in self.acked)
            assert self.cursor.backlog(offset) == len([o for o in range(offset) if o not in self.acked])
            wanted = sum(1 << i for i in range(9) if offset + i not in self.acked)
            assert self.cursor.unacked_mask(offset, 9) == wanted
            assert self.cursor.all_acked(offset, offset + 9) == (wanted == 0)
            assert self.cursor.none_acked(offset, offset + 9) == (wanted == (1 << 9) - 1)


TestCursorModel = CursorModel.TestCase
TestCursorModel.settings = settings(max_examples=rounds(60), stateful_step_count=20, deadline=None)


def test_a_hundred_thousand_holes_survive_and_stay_small() -> None:
    rng = random.Random(1)
    cursor = Cursor()
    acked = sorted(rng.sample(range(1, 1_000_000), 100_000))
    for offset in acked:
        cursor.ack(offset, offset + 1)
    stored = cursor.to_bytes()
    assert len(stored) < 300_000
    again = Cursor.from_bytes(stored)
    assert again.holes == 100_000
    assert all(again.is_acked(offset) for offset in acked)


def test_repeated_acknowledgements_change_nothing() -> None:
    cursor = Cursor()
    cursor.ack(0, 5)
    version = cursor.version
    cursor.ack(2, 4)
    cursor.ack_up_to(3)
    assert (cursor.version, cursor.mark_delete) == (version, 4)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_cursor_are_refused(raw: bytes) -> None:
    if raw[:1] != b"\x01":
        with pytest.raises(WireError):
            Cursor.from_bytes(raw)
