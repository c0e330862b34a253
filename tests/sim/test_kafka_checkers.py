"""Each promise to Kafka's clients: a history that keeps it passes, and one that breaks it is rejected."""

import pytest

from weir.model.errors import ConnectionLostError
from weir.testing import log_checkers as logs
from weir.testing.kafka.checkers import contents, groups, transactions
from weir.testing.kafka.checkers import log as kafka_logs
from weir.testing.kafka.checkers.every import CHECKERS
from weir.testing.kafka.history import KafkaOp
from weir.testing.kafka.truth import ANEW, BACK, PIPE
from weir.testing.log_history import LogOpKind
from weir.testing.operations import FINAL
from weir.testing.shrink import shrink
from weir.testing.story import Story

_PART = "in-0"


class KafkaStory(Story[KafkaOp]):
    """Of one partition, unless it says otherwise."""

    def __init__(self) -> None:
        super().__init__(KafkaOp, CHECKERS, part=_PART)

    def publish(self, payload: str, offset: int = -1, *, client: str = "p", **facts: object) -> None:
        self.tell(client, LogOpKind.PUBLISH, payload=payload, **facts).ok(offset=offset)

    def end(self, token: str, *, commits: bool = True, client: str = "w") -> None:
        self.tell(client, LogOpKind.END, token=token, commits=commits, part="").ok()

    def read(self, offset: int, payload: str, **facts: object) -> None:
        self.tell("r", LogOpKind.READ, offset=offset, payload=payload, **facts).ok()

    def commit(self, offset: int, *, generation: int = -1, member: str = "m", **facts: object) -> None:
        facts = {"group": "g", "member": member, "generation": generation, **facts}
        self.tell(member, LogOpKind.COMMIT, offset=offset, **facts).ok()

    def position(self, offset: int, *, group: str = "g", client: str = "m") -> None:
        self.tell(client, LogOpKind.POSITION, group=group).ok(offset=offset)

    def assigned(self, member: str, generation: int, **facts: object) -> None:
        facts = {"group": "g", "member": member, "generation": generation, "owned": (_PART,), **facts}
        self.tell(member, LogOpKind.ASSIGNED, part="", **facts).ok()

    def joined(self, member: str, generation: int, why: str = BACK, **facts: object) -> None:
        facts = {"group": "g", "payload": why, "session_s": 10.0, **facts}
        self.tell(member, LogOpKind.JOIN, part="", **facts).ok(member=member, generation=generation)

    def content(self, payload: str, offset: int) -> None:
        self.tell(FINAL, LogOpKind.CONTENT, offset=offset, payload=payload).ok()

    def log(self, *entries: str | bool, part: str = _PART, first: int = 0, start: int | None = None) -> None:
        """The partition in the end: messages, and markers (True: commits), all of one producer."""
        for offset, entry in enumerate(entries, first):
            if isinstance(entry, bool):
                facts = {"offset": offset, "producer": 7, "commits": entry}
                self.tell(FINAL, LogOpKind.MARKER, part=part, **facts).ok()
            else:
                token = entry.partition("|")[0] if "|" in entry else ""
                facts = {"offset": offset, "payload": entry, "token": token, "producer": 7 if token else -1}
                self.tell(FINAL, LogOpKind.CONTENT, part=part, **facts).ok()
        self.tell(FINAL, LogOpKind.READ_ALL, part=part, start=start).ok()

    def visible(self, *found: tuple[int, str], part: str = _PART) -> None:
        for offset, payload in found:
            self.tell(FINAL, LogOpKind.VISIBLE, part=part, offset=offset, payload=payload).ok()


@pytest.fixture
def story() -> KafkaStory:
    return KafkaStory()


def test_a_plain_life_breaks_no_promise(story: KafkaStory) -> None:
    story.publish("p#0", 0)
    story.publish("w.1|a", 1, client="w", token="w.1", once=True)
    story.end("w.1")
    story.read(0, "p#0", commits=True)
    story.read(1, "w.1|a", commits=True)
    story.publish("w.2|b", 3, client="w", token="w.2", once=True)
    story.end("w.2", commits=False)
    story.assigned("m", 1)
    story.commit(3, generation=1)
    story.position(3)
    story.log("p#0", "w.1|a", True, "w.2|b", False)
    story.visible((0, "p#0"), (1, "w.1|a"))
    assert story.broken() == []


def test_a_lost_acknowledged_message_is_found(story: KafkaStory) -> None:
    story.publish("p#0", 0)
    story.log()
    assert story.rejected_by(logs.acknowledged_is_stored) == "p#0 was acknowledged to p and is not in in-0"


def test_a_receipt_that_names_the_wrong_offset_is_found(story: KafkaStory) -> None:
    story.publish("p#1", 0)
    story.log("p#0", "p#1")
    assert "where p#0 stands" in story.rejected_by(logs.receipts_say_where)


def test_a_message_of_an_idempotent_producer_that_is_stored_twice_is_found(story: KafkaStory) -> None:
    story.tell("p", LogOpKind.PUBLISH, payload="p#0", once=True).failed(ConnectionLostError("away"))
    story.publish("p#0", once=True)
    story.log("p#0", "p#0")
    assert "stands 2 times" in story.rejected_by(logs.stored_once)


def test_a_plain_message_may_be_stored_as_often_as_it_was_sent_but_not_more_often(story: KafkaStory) -> None:
    story.tell("p", LogOpKind.PUBLISH, payload="p#0").failed(ConnectionLostError("away"))
    story.publish("p#0")
    story.log("p#0", "p#0")
    assert logs.stored_once(story.history.ops()) == []
    story.log("p#0", first=2)
    assert story.rejected_by(logs.stored_once)


@pytest.mark.parametrize("stored", [("p#1", "p#0"), ("p#1",)])
def test_messages_out_of_order_or_with_a_hole_are_found(story: KafkaStory, stored: tuple[str, ...]) -> None:
    story.tell("p", LogOpKind.PUBLISH, payload="p#0")
    story.publish("p#1")
    story.log(*stored)
    assert "p#1 stands in in-0 without p#0" in story.rejected_by(logs.producers_order_is_kept)


def test_a_producer_that_is_refused_for_no_reason_is_found(story: KafkaStory) -> None:
    story.tell("p", LogOpKind.REFUSED, payload="p#0").ok()
    assert "p#0 of p was refused" in story.rejected_by(kafka_logs.producers_can_go_on)


def test_something_else_that_is_taken_for_what_had_its_numbers_is_found(story: KafkaStory) -> None:
    story.tell("p", LogOpKind.OVERWRITE, payload="p.1|over0").failed(ConnectionLostError("away"))
    assert story.broken() == []
    story.tell("p", LogOpKind.OVERWRITE, payload="p.2|over0").ok()
    assert "p.2|over0 of p was taken" in story.rejected_by(kafka_logs.numbers_are_used_once)


def test_a_hole_between_offsets_is_found(story: KafkaStory) -> None:
    for offset in (0, 2):
        story.tell(FINAL, LogOpKind.CONTENT, offset=offset, payload=f"p#{offset}").ok()
    assert story.rejected_by(kafka_logs.offsets_are_dense) == "2 follows 0 in in-0"


def test_what_was_read_and_is_something_else_or_nothing_in_the_end_is_found(story: KafkaStory) -> None:
    story.read(0, "p#0")
    story.log("p#1")
    assert "where p#1 stands" in story.rejected_by(logs.what_was_seen_stays)
    story.read(5, "p#5")
    assert len(logs.what_was_seen_stays(story.history.ops())) == 2


def test_a_read_of_aborted_data_is_found_unless_it_was_asked_for(story: KafkaStory) -> None:
    story.read(0, "w.1|a")
    story.log("w.1|a", False)
    assert kafka_logs.only_committed_is_read(story.history.ops()) == []
    story.read(0, "w.1|a", commits=True)
    assert story.rejected_by(kafka_logs.only_committed_is_read) == "r got w.1|a of in-0, which was aborted"


def test_a_delivery_of_aborted_data_to_a_subscription_is_found(story: KafkaStory) -> None:
    story.tell("u", LogOpKind.DELIVER, payload="w.1|a").ok()
    story.log("w.1|a", False)
    assert story.rejected_by(kafka_logs.only_committed_is_read)


def test_a_read_before_the_decision_is_found(story: KafkaStory) -> None:
    story.read(0, "w.1|a", commits=True)
    story.end("w.1")
    story.log("w.1|a", True)
    assert "before anybody asked for w.1 to commit" in story.rejected_by(kafka_logs.only_committed_is_read)


def test_a_stable_offset_beyond_an_open_transaction_is_found(story: KafkaStory) -> None:
    story.tell("r", LogOpKind.MARKS, high=2, stable=0).ok()
    story.tell("r", LogOpKind.MARKS, high=3, stable=3).ok()
    story.log("w.1|a", "p#0", True)
    assert kafka_logs.stable_offset_is_true(story.history.ops()) == []
    story.tell("r", LogOpKind.MARKS, high=2, stable=2).ok()
    assert "in-0@0 is of an open transaction" in story.rejected_by(kafka_logs.stable_offset_is_true)


def test_a_reader_that_missed_something_is_found(story: KafkaStory) -> None:
    story.read(0, "p#0", commits=True)
    story.read(5, "p#2", commits=True)
    story.log("p#0", "w.1|a", False, "w.2|b", True, "p#2")
    assert story.rejected_by(kafka_logs.readers_skip_nothing) == "r read in-0 from 0 to 5 and never got w.2|b"


def test_a_transaction_that_is_still_open_in_the_end_is_found(story: KafkaStory) -> None:
    story.log("w.1|a")
    assert "is still undecided" in story.rejected_by(kafka_logs.everything_is_seen_in_the_end)


def test_something_committed_that_cannot_be_read_or_never_came_is_found(story: KafkaStory) -> None:
    story.log("p#0", "p#1")
    story.visible((1, "p#1"))
    assert "p#0 of in-0 cannot be read" in story.rejected_by(kafka_logs.everything_is_seen_in_the_end)
    story.visible((0, "p#0"))
    story.tell("u", LogOpKind.DELIVER, payload="p#0").ok()
    story.tell(FINAL, LogOpKind.DRAINED).ok()
    assert "p#1 of in-0 never came" in story.rejected_by(kafka_logs.everything_is_seen_in_the_end)


def test_what_cannot_be_had_in_the_end_is_found(story: KafkaStory) -> None:
    story.tell(FINAL, LogOpKind.MISSING, part="in-0").failed(ConnectionLostError("nobody is there"))
    assert "nobody is there" in story.rejected_by(logs.all_is_available_after_healing)


def test_half_a_transaction_is_found(story: KafkaStory) -> None:
    story.log("w.1|a", True)
    story.log("w.1|b", False, part="out-0")
    sentence = story.rejected_by(transactions.transactions_are_atomic)
    assert sentence == "w.1 is committed in in-0 and aborted in out-0"


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_that_ended_otherwise_than_was_answered_is_found(story: KafkaStory, commits: bool) -> None:
    story.end("w.1", commits=commits)
    story.log("w.1|a", not commits)
    assert transactions.transactions_are_atomic(story.history.ops())


def test_an_unanswered_end_may_be_either(story: KafkaStory) -> None:
    for number, commits in enumerate((True, False)):
        story.tell("w", LogOpKind.END, token=f"w.{number}", commits=True, part="")
        story.log(f"w.{number}|a", commits, first=2 * number)
    assert transactions.transactions_are_atomic(story.history.ops()) == []


@pytest.mark.parametrize(("times", "position"), [(0, 1), (2, 1), (1, 0)])
def test_input_that_was_not_processed_exactly_once_is_found(story: KafkaStory, times: int, position: int) -> None:
    story.log("p#0")
    story.visible(*((at, f"t.{at}|{PIPE}|in-0@0") for at in range(times)), part="out-0")
    story.position(position, group=PIPE, client=FINAL)
    assert f"was processed {times} times" in story.rejected_by(transactions.processed_exactly_once)


def test_aborted_input_is_not_to_be_processed(story: KafkaStory) -> None:
    story.log("w.1|a", False, "p#0")
    story.visible((0, f"t.1|{PIPE}|in-0@2"), part="out-0")
    story.position(3, group=PIPE, client=FINAL)
    assert transactions.processed_exactly_once(story.history.ops()) == []


def test_a_position_that_moves_back_by_itself_is_found(story: KafkaStory) -> None:
    story.commit(3)
    story.commit(5)
    story.position(5)
    assert story.broken() == []
    story.position(3)
    assert "is at in-0@3, and has committed 5 since" in story.rejected_by(groups.positions_are_kept)


def test_a_position_that_was_asked_to_move_back_may_do_so_also_late(story: KafkaStory) -> None:
    story.tell("m", LogOpKind.COMMIT, offset=3, group="g")
    story.commit(5)
    story.position(3)
    assert story.broken() == []


def test_a_late_commit_of_an_earlier_generation_does_not_count(story: KafkaStory) -> None:
    story.tell("m", LogOpKind.COMMIT, offset=3, group="g", generation=1)
    story.commit(5, generation=2)
    story.position(3)
    assert story.rejected_by(groups.positions_are_kept)


def test_a_position_that_nobody_committed_or_that_is_gone_is_found(story: KafkaStory) -> None:
    story.commit(5)
    story.log()
    story.position(-1)
    assert "has no position" in story.rejected_by(groups.positions_are_kept)
    story.position(9)
    assert len(groups.positions_are_kept(story.history.ops())) == 2


def test_a_position_moved_by_an_aborted_transaction_is_found(story: KafkaStory) -> None:
    story.commit(5, token="w.1")
    story.end("w.1", commits=False)
    story.log("w.1|a", False)
    story.position(5)
    assert "which nobody committed" in story.rejected_by(groups.positions_are_kept)


def test_a_commit_in_a_generation_that_is_over_is_found(story: KafkaStory) -> None:
    story.assigned("m", 1)
    story.assigned("n", 2)
    story.commit(3, generation=1)
    assert "in generation 1 of g" in story.rejected_by(groups.commits_are_of_their_generation)


def test_a_partition_that_two_members_have_in_one_generation_is_found(story: KafkaStory) -> None:
    story.assigned("m", 1)
    story.assigned("n", 1)
    assert story.rejected_by(groups.one_owner_at_a_time) == "in-0 is m's and n's in generation 1 of g"


def test_something_that_a_group_has_moved_past_unread_is_found(story: KafkaStory) -> None:
    story.read(1, "p#1", group="g")
    story.log("p#0", "p#1")
    story.position(2, client=FINAL)
    assert "never read p#0" in story.rejected_by(groups.groups_read_everything)


# --- static and cooperative members -----------------------------------------------------------------------------


def test_a_partition_that_is_given_away_while_a_member_has_it_is_found(story: KafkaStory) -> None:
    story.joined("m", 2, owned=(_PART,))
    story.assigned("n", 2)
    assert "in-0 was given to n in generation 2 of g" in story.rejected_by(groups.what_is_owned_stays)


@pytest.mark.parametrize("took_over", [False, True])
def test_a_number_is_used_for_two_generations_only_after_a_take_over(story: KafkaStory, took_over: bool) -> None:
    story.joined("m", 2, owned=(_PART,))
    if took_over:
        story.tell("b2", LogOpKind.TOOK_OVER).ok()
    story.joined("n", 2)
    story.assigned("n", 2)
    if took_over:
        assert story.broken() == []
    else:
        assert "in-0 was given to n in generation 2 of g" in story.rejected_by(groups.what_is_owned_stays)


def test_a_static_member_that_comes_back_to_another_share_is_found(story: KafkaStory) -> None:
    story.assigned("m.1", 1, instance="m")
    story.assigned("m.2", 1, instance="m", owned=())
    assert "m had ('in-0',) in generation 1" in story.rejected_by(groups.static_members_keep_their_share)


def test_a_commit_of_a_former_self_is_found(story: KafkaStory) -> None:
    story.joined("m.1", 1, instance="m")
    story.joined("m.2", 1, instance="m")
    story.commit(3, generation=1, member="m.2", instance="m")
    assert story.broken() == []
    story.commit(4, generation=1, member="m.1", instance="m")
    assert "m.1 committed as m.1" in story.rejected_by(groups.former_selves_are_fenced)


def test_a_restart_in_time_that_divides_the_work_anew_is_found(story: KafkaStory) -> None:
    story.joined("m.1", 1, instance="m")
    story.assigned("m.1", 1, instance="m")
    story.joined("m.2", 2, instance="m")
    sentence = story.rejected_by(groups.restarts_divide_nothing_anew)
    assert sentence == "m was in generation 1 of g, came back in time, and was told that it is 2"


@pytest.mark.parametrize("reason", ["left", "silent", "new", "anew", "took-over"])
def test_the_work_may_be_divided_anew_for_another_reason(story: KafkaStory, reason: str) -> None:
    story.joined("m.1", 1, instance="m")
    story.assigned("m.1", 1, instance="m")
    if reason == "left":
        story.tell("n", LogOpKind.LEFT, group="g", instance="n").ok()
    elif reason == "silent":
        story.now += 100
    elif reason == "new":
        story.joined("n.1", 2, instance="n")
    elif reason == "anew":
        story.joined("m.1", 2, instance="m", why=ANEW)
    else:
        story.tell("broker1", LogOpKind.TOOK_OVER).ok()
    story.joined("m.2", 2, instance="m")
    assert groups.restarts_divide_nothing_anew(story.history.ops()) == []


# --- deleted, delayed, compacted ------------------------------------------------------------------------------


def delete(story: KafkaStory, offset: int) -> None:
    story.tell("d", LogOpKind.DELETE, offset=offset, host="b0").ok()


def test_what_is_deleted_may_be_gone_and_nothing_else(story: KafkaStory) -> None:
    for offset in range(4):
        story.publish(f"p#{offset}", offset)
    story.read(1, "p#1")
    delete(story, 2)
    story.log("p#2", "p#3", first=2, start=2)
    story.visible((2, "p#2"), (3, "p#3"))
    assert story.broken() == []


def test_something_deleted_that_is_read_from_the_same_broker_is_found(story: KafkaStory) -> None:
    delete(story, 2)
    story.read(1, "p#1", host="b1", asked=story.history.step)
    assert contents.deleted_is_not_served(story.history.ops()) == []
    story.read(1, "p#1", host="b0", asked=story.history.step + 1)
    sentence = story.rejected_by(contents.deleted_is_not_served)
    assert sentence == "r got in-0@1, and all before 2 was deleted"


def test_a_partition_that_begins_too_late_is_found(story: KafkaStory) -> None:
    delete(story, 2)
    story.log("p#3", first=3, start=3)
    assert "begins at 3, and only what is before 2" in story.rejected_by(contents.only_deleted_is_gone)


def delay(story: KafkaStory, due_at: float = 0.0) -> None:
    story.tell("w", LogOpKind.DELAY, payload="w.1|late", token="w.1", due_at=due_at).ok()


def test_a_message_that_is_seen_before_its_moment_is_found(story: KafkaStory) -> None:
    delay(story, due_at=9.0)
    story.end("w.1")
    story.read(3, "w.1|late")
    assert "which is due at 9.000s" in story.rejected_by(logs.delays_are_kept)


def test_a_delayed_message_of_a_committed_transaction_comes_once(story: KafkaStory) -> None:
    delay(story)
    story.end("w.1")
    story.content("w.1|late", 3)
    story.visible((3, "w.1|late"))
    story.log()
    assert story.broken() == []
    story.content("w.1|late", 4)
    assert "stands 2 times" in story.rejected_by(transactions.delayed_follow_their_transaction)


def test_a_delayed_message_that_never_comes_is_found(story: KafkaStory) -> None:
    delay(story)
    story.end("w.1")
    story.log()
    assert "and never came" in story.rejected_by(transactions.delayed_follow_their_transaction)


@pytest.mark.parametrize("commits", [False, None])
def test_a_delayed_message_without_a_commit_is_found(story: KafkaStory, commits: bool | None) -> None:
    delay(story)
    story.read(3, "w.1|late")
    if commits is not None:
        story.end("w.1", commits=commits)
    sentence = story.rejected_by(transactions.delayed_follow_their_transaction)
    assert sentence == "r got w.1|late, and nobody had asked for w.1 to commit"


def put(story: KafkaStory, payload: str, offset: int) -> None:
    story.tell("k", LogOpKind.PUT, payload=payload, key="k").ok(offset=offset, host="b0")


def scanned(story: KafkaStory, *rows: tuple[int, str], key: str = "k") -> None:
    asked = story.history.step + 1
    for offset, payload in rows:
        story.tell("s", LogOpKind.ROW, offset=offset, payload=payload, key=key).ok()
    story.tell("s", LogOpKind.SCANNED, asked=asked, host="b0").ok()


def test_a_lost_last_value_is_found(story: KafkaStory) -> None:
    put(story, "v#0", 0)
    put(story, "v#1", 1)
    scanned(story, (0, "v#0"))
    assert "whose value was v#1@1" in story.rejected_by(contents.the_last_value_is_kept)


def test_a_value_that_is_not_the_last_may_be_gone(story: KafkaStory) -> None:
    put(story, "v#0", 0)
    put(story, "v#1", 1)
    scanned(story, (1, "v#1"))
    assert story.broken() == []


def test_a_row_that_moved_is_found(story: KafkaStory) -> None:
    put(story, "v#0", 0)
    scanned(story, (1, "v#0"))
    assert story.rejected_by(contents.rows_stay_where_they_were).startswith("v#0 stands at 1")


def test_a_row_of_another_key_is_found(story: KafkaStory) -> None:
    put(story, "v#0", 0)
    scanned(story, (0, "v#0"), key="other")
    assert story.rejected_by(contents.rows_stay_where_they_were) == "v#0 is other's, and was sent as k's"


def test_a_violation_shrinks_to_what_proves_it(story: KafkaStory) -> None:
    for number in range(20):
        story.publish(f"p#{number}", number)
    story.log(*(f"p#{number}" for number in range(19)))
    violation = logs.acknowledged_is_stored(story.history.ops())[0]
    shortest = shrink(story.history.ops(), violation, CHECKERS)
    assert [op.kind for op in shortest] == [LogOpKind.PUBLISH, LogOpKind.READ_ALL]


def test_every_checker_says_what_it_promises() -> None:
    assert all(checker.__doc__ for checker in CHECKERS)
