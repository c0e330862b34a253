"""Each promise: a history that keeps it passes, and one that breaks it is rejected with a sentence."""

from typing import Any

import pytest

from weir.model.errors import EntryUnreadableError
from weir.model.ids import EntryId, LedgerId
from weir.testing.checking import violations_of
from weir.testing.operations import FINAL, Pending
from weir.testing.shrink import shrink
from weir.testing.storage import checkers
from weir.testing.storage.checkers import CHECKERS
from weir.testing.storage.history import LedgerOpKind, Op, make_payload, payload_id
from weir.testing.story import Story

LEDGER = LedgerId(7)


class LedgerStory(Story[Op]):
    """Of one ledger, unless it says otherwise."""

    def __init__(self) -> None:
        super().__init__(Op, CHECKERS, ledger=LEDGER)

    def begin(self, client: str, kind: LedgerOpKind, **facts: Any) -> Pending:
        return self.tell(client, kind, **facts)

    def append(self, client: str, payload: str, entry: int, *, ledger: int = LEDGER) -> None:
        self.begin(client, LedgerOpKind.APPEND, payload=payload, ledger=ledger).ok(entry=EntryId(entry))

    def read(self, client: str, entry: int, payload: str, *, ledger: int = LEDGER) -> None:
        self.begin(client, LedgerOpKind.READ, entry=entry, ledger=ledger).ok(payload=payload)

    def cannot_read(self, client: str, entry: int) -> None:
        self.begin(client, LedgerOpKind.READ, entry=entry).failed(EntryUnreadableError("no replica has it"))

    def end(self, client: str, kind: LedgerOpKind, end: int) -> None:
        self.begin(client, kind).ok(end=EntryId(end))

    def promises_broken(self) -> list[str]:
        return [violation.promise for violation in violations_of(self.history.ops(), CHECKERS)]


@pytest.fixture
def story() -> LedgerStory:
    return LedgerStory()


def test_a_plain_life_of_a_ledger_breaks_no_promise(story: LedgerStory) -> None:
    story.begin("w", LedgerOpKind.CREATE).ok()
    story.append("w", "w#0", 0)
    story.append("w", "w#1", 1)
    story.begin("w", LedgerOpKind.APPEND, payload="w#2")  # the writer dies
    story.end("r", LedgerOpKind.CONFIRMED, 1)
    story.read("r", 0, "w#0")
    story.end("c", LedgerOpKind.RECOVER, 2)
    story.end("d", LedgerOpKind.RECOVER, 2)
    story.end(FINAL, LedgerOpKind.RECOVER, 2)
    for entry in range(3):
        story.read(FINAL, entry, f"w#{entry}")
    assert story.promises_broken() == []


def test_reads_that_fail_while_faults_are_about_break_no_promise(story: LedgerStory) -> None:
    story.append("w", "w#0", 0)
    story.cannot_read("r", 0)
    story.begin("c", LedgerOpKind.RECOVER).failed(EntryUnreadableError("bookies are away"))
    assert story.promises_broken() == []


def test_a_lost_acknowledged_entry_is_found(story: LedgerStory) -> None:
    story.append("w", "w#0", 0)
    story.cannot_read(FINAL, 0)
    sentence = story.rejected_by(checkers.acknowledged_is_kept)
    assert sentence == "entry 0 of ledger 7 was acknowledged to w and cannot be read"


def test_entries_of_a_ledger_that_someone_deletes_need_not_be_kept(story: LedgerStory) -> None:
    story.append("w", "w#0", 0)
    story.begin("w", LedgerOpKind.DELETE)
    story.cannot_read(FINAL, 0)
    assert story.promises_broken() == []


def test_a_recovered_ledger_takes_no_more_entries_even_if_someone_deletes_it(story: LedgerStory) -> None:
    story.end("c", LedgerOpKind.RECOVER, -1)
    story.begin("c", LedgerOpKind.DELETE)
    story.append("w", "w#0", 0)
    assert "was closed by c before w began" in story.rejected_by(checkers.nothing_is_acknowledged_after_recovery)


def test_a_changed_acknowledged_entry_is_found(story: LedgerStory) -> None:
    story.begin("x", LedgerOpKind.APPEND, payload="x#0")
    story.append("w", "w#0", 0)
    story.read("r", 0, "x#0")
    assert story.rejected_by(checkers.acknowledged_is_unchanged).endswith("acknowledged as w#0, and r read x#0")


def test_an_entry_that_is_read_once_and_is_gone_later_is_found(story: LedgerStory) -> None:
    story.begin("w", LedgerOpKind.APPEND, payload="w#0")  # never acknowledged
    story.read("r", 0, "w#0")
    story.cannot_read(FINAL, 0)
    assert story.rejected_by(checkers.readable_stays_readable).endswith("was read by r and now cannot be")


def test_an_entry_that_reads_differently_later_is_found(story: LedgerStory) -> None:
    story.begin("w", LedgerOpKind.APPEND, payload="w#0")
    story.begin("x", LedgerOpKind.APPEND, payload="x#0")
    story.read("r", 0, "w#0")
    story.read("s", 0, "x#0")
    assert "was read as w#0 by r and later as x#0 by s" in story.rejected_by(checkers.readable_stays_readable)


def test_a_recovery_below_an_acknowledged_entry_is_found_even_if_the_acknowledgement_comes_later(
    story: LedgerStory,
) -> None:
    slow = story.begin("w", LedgerOpKind.APPEND, payload="w#0")
    story.end("c", LedgerOpKind.RECOVER, -1)
    slow.ok(entry=EntryId(0))
    sentence = story.rejected_by(checkers.recovery_keeps_acknowledged)
    assert sentence == "ledger 7 was closed at -1 by c, but its entry 0 was acknowledged for w"


def test_a_recovery_below_an_entry_that_was_readable_is_found(story: LedgerStory) -> None:
    story.begin("w", LedgerOpKind.APPEND, payload="w#0")
    story.read("r", 0, "w#0")
    story.end("c", LedgerOpKind.RECOVER, -1)
    assert "its entry 0 was readable for r" in story.rejected_by(checkers.recovery_keeps_acknowledged)


def test_two_writers_acknowledged_for_one_entry_are_found(story: LedgerStory) -> None:
    story.append("w", "w#0", 0)
    story.append("x", "x#0", 0)
    sentence = story.rejected_by(checkers.one_acknowledgement_per_entry)
    assert sentence == "entry 0 of ledger 7 was acknowledged to w as w#0 and to x as x#0"


def test_the_same_entry_id_in_two_ledgers_is_fine(story: LedgerStory) -> None:
    story.append("w", "w#0", 0, ledger=1)
    story.append("w", "w#1", 0, ledger=2)
    assert story.promises_broken() == []


def test_acknowledgements_out_of_order_are_found(story: LedgerStory) -> None:
    first = story.begin("w", LedgerOpKind.APPEND, payload="w#0")
    second = story.begin("w", LedgerOpKind.APPEND, payload="w#1")
    second.ok(entry=EntryId(1))
    first.ok(entry=EntryId(0))
    assert "after w#1 as entry 1" in story.rejected_by(checkers.acknowledgements_in_order)


def test_entry_ids_that_do_not_follow_the_appends_are_found(story: LedgerStory) -> None:
    story.append("w", "w#0", 1)
    story.append("w", "w#1", 0)
    assert story.rejected_by(checkers.acknowledgements_in_order)


def test_reordered_entries_are_found(story: LedgerStory) -> None:
    story.begin("w", LedgerOpKind.APPEND, payload="w#0")
    story.begin("w", LedgerOpKind.APPEND, payload="w#1")
    story.read("r", 0, "w#1")
    story.read("r", 1, "w#0")
    assert "w#1 stands at entry 0, before w#0" in story.rejected_by(checkers.read_order_is_append_order)


def test_an_append_found_twice_is_found(story: LedgerStory) -> None:
    story.begin("w", LedgerOpKind.APPEND, payload="w#0")
    story.read("r", 0, "w#0")
    story.read("r", 1, "w#0")
    assert story.rejected_by(checkers.read_order_is_append_order)


def test_bytes_that_nobody_appended_are_found(story: LedgerStory) -> None:
    story.begin("w", LedgerOpKind.APPEND, payload="w#0", ledger=1)
    story.read("r", 0, "w#0", ledger=2)
    assert "which nobody had appended" in story.rejected_by(checkers.reads_return_what_was_appended)


def test_a_second_end_is_found(story: LedgerStory) -> None:
    story.end("w", LedgerOpKind.CLOSE, 4)
    story.end("c", LedgerOpKind.RECOVER, 3)
    assert story.rejected_by(checkers.end_never_changes) == "ledger 7 ends at 4 for w and at 3 for c"


def test_a_ledger_that_ends_below_what_was_confirmed_is_found(story: LedgerStory) -> None:
    story.end("r", LedgerOpKind.CONFIRMED, 3)
    story.end("c", LedgerOpKind.RECOVER, 2)
    assert "confirmed up to 3, but c closed it at 2" in story.rejected_by(checkers.confirmed_is_true)


def test_a_last_confirmed_that_goes_back_is_found(story: LedgerStory) -> None:
    story.end("r", LedgerOpKind.CONFIRMED, 3)
    story.end("r", LedgerOpKind.CONFIRMED, 2)
    assert story.rejected_by(checkers.confirmed_is_true)


def test_two_readers_may_see_different_last_confirmed(story: LedgerStory) -> None:
    story.end("r", LedgerOpKind.CONFIRMED, 3)
    story.end("s", LedgerOpKind.CONFIRMED, 2)
    assert story.promises_broken() == []


def test_an_append_to_a_recovered_ledger_that_is_acknowledged_is_found(story: LedgerStory) -> None:
    story.end("c", LedgerOpKind.RECOVER, 4)
    story.append("w", "w#0", 4)
    assert "was closed by c before w began" in story.rejected_by(checkers.nothing_is_acknowledged_after_recovery)


def test_a_deleted_ledger_that_comes_back_is_found(story: LedgerStory) -> None:
    story.begin("w", LedgerOpKind.DELETE).ok()
    story.end("c", LedgerOpKind.RECOVER, 4)
    assert story.rejected_by(checkers.deleted_stays_deleted)


def test_a_recovery_that_never_ends_after_healing_is_found(story: LedgerStory) -> None:
    story.begin(FINAL, LedgerOpKind.RECOVER)
    assert story.rejected_by(checkers.all_is_available_after_healing) == "recover of ledger 7 did not succeed"


def test_an_entry_with_too_few_copies_is_found(story: LedgerStory) -> None:
    story.begin(FINAL, LedgerOpKind.COPIES, entry=3).failed(EntryUnreadableError("1 of 2 copies"))
    assert story.promises_broken() == [
        "an acknowledged entry survives the loss of all but one bookie of its ack quorum"
    ]


def test_every_checker_has_a_promise_in_its_first_line() -> None:
    assert all(checker.__doc__ for checker in CHECKERS)


def test_a_shrunk_history_holds_only_the_operations_in_conflict(story: LedgerStory) -> None:
    for n in range(50):
        story.append("w", f"w#{n}", n)
        story.read("r", n, f"w#{n}")
    story.end("c", LedgerOpKind.RECOVER, 48)
    story.end("d", LedgerOpKind.RECOVER, 48)
    violation = violations_of(story.history.ops(), CHECKERS)[0]
    shortest = shrink(story.history.ops(), violation, CHECKERS)
    assert [(op.kind, op.client) for op in shortest] == [(LedgerOpKind.APPEND, "w"), (LedgerOpKind.RECOVER, "c")]
    assert str(shortest[0]).endswith("append    ledger 7 entry 49 payload w#49 -> ok")


def test_shrinking_never_turns_an_innocent_operation_into_the_culprit(story: LedgerStory) -> None:
    story.append("w", "w#0", 0)
    story.read("r", 0, "w#0")
    story.read("r", 1, "damaged:b'?'")
    violation = violations_of(story.history.ops(), CHECKERS)[0]
    assert [op.payload for op in shrink(story.history.ops(), violation, CHECKERS)] == ["damaged:b'?'"]


def test_a_payload_says_who_appended_it_and_a_damaged_one_does_not() -> None:
    data = make_payload("w1", 12, 100)
    assert len(data) == 100
    assert payload_id(data) == "w1#12"
    assert payload_id(memoryview(data)) == "w1#12"
    assert payload_id(data[:-1]) != "w1#12"
    assert payload_id(data[:50] + b"!" + data[51:]) != "w1#12"
    assert payload_id(b"") != payload_id(make_payload("", 0, 0))
