"""Each promise of brokers: a history that keeps it passes, and one that breaks it is rejected with a sentence."""

import pytest

from weir.model.errors import ConnectionLostError
from weir.testing import log_checkers as logs
from weir.testing.broker import checkers
from weir.testing.broker.checkers import CHECKERS
from weir.testing.broker.history import BrokerOp, MessagePosition
from weir.testing.log_history import LogOpKind
from weir.testing.operations import FINAL, Pending
from weir.testing.shrink import shrink
from weir.testing.story import Story


class TopicStory(Story[BrokerOp]):
    """Of one topic."""

    def __init__(self) -> None:
        super().__init__(BrokerOp, CHECKERS, topic="t")

    def begin(self, client: str, kind: LogOpKind, entry: int | None = None, **facts: object) -> Pending:
        return self.tell(client, kind, place=None if entry is None else MessagePosition(1, entry), **facts)

    def publish(self, number: int, entry: int | None = None, **facts: object) -> None:
        pending = self.begin("p", LogOpKind.PUBLISH, payload=f"p#{number}", **facts)
        pending.ok(place=None if entry is None else MessagePosition(1, entry))

    def subscribe(self, client: str, subscription: str = "shared", broker: str = "b0") -> None:
        self.begin(client, LogOpKind.SUBSCRIBE, subscription=subscription).ok(broker=broker)

    def deliver(self, client: str, entry: int, subscription: str = "shared", key: str | None = None) -> None:
        self.begin(client, LogOpKind.DELIVER, entry, subscription=subscription, payload=f"p#{entry}", key=key).ok()

    def ack(self, client: str, entry: int, subscription: str = "shared") -> None:
        self.begin(client, LogOpKind.ACK, entry, subscription=subscription).ok()

    def content(self, *numbers: int, key: str | None = None) -> None:
        for entry, number in enumerate(numbers):
            self.begin(FINAL, LogOpKind.CONTENT, entry, payload=f"p#{number}", key=key).ok()
        self.begin(FINAL, LogOpKind.READ_ALL).ok()

    def drained(self, subscription: str = "shared") -> None:
        self.begin(FINAL, LogOpKind.DRAINED, subscription=subscription).ok()


@pytest.fixture
def story() -> TopicStory:
    return TopicStory()


def test_a_plain_life_of_a_topic_breaks_no_promise(story: TopicStory) -> None:
    story.subscribe("c")
    story.publish(0, 0)
    story.begin("p", LogOpKind.PUBLISH, payload="p#1").failed(ConnectionLostError("away"))
    story.deliver("c", 0)
    story.ack("c", 0)
    story.publish(1, 1)
    story.content(0, 1)
    story.subscribe(FINAL)
    story.deliver(FINAL, 1)
    story.drained()
    assert story.broken() == []


def test_a_lost_acknowledged_message_is_found(story: TopicStory) -> None:
    story.publish(0, 0)
    story.content()
    assert story.rejected_by(logs.acknowledged_is_stored) == "p#0 was acknowledged to p and is not in t"


def test_a_message_that_someone_tried_to_cancel_may_be_gone(story: TopicStory) -> None:
    story.publish(0, due_at=5.0)
    story.begin("b", LogOpKind.CANCEL, payload="p#0")
    story.content()
    assert story.broken() == []


def test_a_receipt_that_overtakes_another_is_found_on_one_connection(story: TopicStory) -> None:
    for session, order in ((1, (0, 1)), (2, (1, 0))):
        for number in (0, 1):
            story.begin("p", LogOpKind.PUBLISH, payload=f"p#{number}", session=session)
        for number in order:
            story.begin("p", LogOpKind.RECEIPT, payload=f"p#{number}", session=session).ok()
        if session == 1:
            assert story.broken() == []
    told = "p#0 was sent before p#1 to t, and its receipt came after"
    assert story.rejected_by(checkers.receipts_are_in_order) == told


def test_a_receipt_that_names_the_wrong_place_is_found(story: TopicStory) -> None:
    story.publish(1, 0)
    story.content(0, 1)
    assert "where p#0 stands" in story.rejected_by(logs.receipts_say_where)


def test_two_receipts_for_one_place_are_found(story: TopicStory) -> None:
    story.publish(0, 0)
    story.publish(1, 0)
    assert "both acknowledged at 1:0" in story.rejected_by(logs.receipts_say_where)


def test_a_message_stored_twice_is_found_with_deduplication(story: TopicStory) -> None:
    story.publish(0, once=True)
    story.publish(0, once=True)
    story.content(0, 0)
    assert story.rejected_by(logs.stored_once) == "p#0 stands 2 times in t, 1 at the most is right"


def test_without_deduplication_a_message_sent_twice_may_be_stored_twice_but_not_thrice(story: TopicStory) -> None:
    story.publish(0)
    story.publish(0)
    story.content(0, 0)
    assert story.broken() == []
    story.begin(FINAL, LogOpKind.CONTENT, 2, payload="p#0").ok()
    assert story.rejected_by(logs.stored_once)


@pytest.mark.parametrize("stored", [(1, 0), (1,)])
def test_messages_out_of_order_or_with_a_hole_are_found(story: TopicStory, stored: tuple[int, ...]) -> None:
    story.begin("p", LogOpKind.PUBLISH, payload="p#0")
    story.publish(1)
    story.content(*stored)
    assert "p#1 stands in t without p#0" in story.rejected_by(logs.producers_order_is_kept)


def test_a_delayed_message_may_stand_behind_later_ones(story: TopicStory) -> None:
    story.publish(0, due_at=3.0)
    story.publish(1)
    story.content(1, 0)
    assert story.broken() == []


def test_a_hole_in_the_places_is_found(story: TopicStory) -> None:
    for entry in (0, 2):
        story.begin(FINAL, LogOpKind.CONTENT, entry, payload=f"p#{entry}").ok()
    assert story.rejected_by(checkers.places_are_dense) == "between 1:0 and 1:2 of t there is a hole"


def test_places_that_go_back_are_found(story: TopicStory) -> None:
    for entry in (1, 0):
        story.begin(FINAL, LogOpKind.CONTENT, entry, payload=f"p#{entry}").ok()
    assert "stands behind" in story.rejected_by(checkers.places_are_dense)


def test_what_was_delivered_and_is_something_else_or_nothing_in_the_end_is_found(story: TopicStory) -> None:
    story.deliver("c", 0)
    story.content(7)
    assert "where p#7 stands" in story.rejected_by(logs.what_was_seen_stays)
    story.deliver("c", 5)
    assert len(logs.what_was_seen_stays(story.history.ops())) == 2


def test_what_never_came_to_a_subscription_is_found_unless_someone_sought_past_it(story: TopicStory) -> None:
    story.content(0, 1)
    story.deliver(FINAL, 1)
    story.drained()
    assert story.rejected_by(checkers.everything_is_delivered) == "p#0 at 1:0 of t never came to shared"
    story.begin("c", LogOpKind.SEEK, 1, subscription="shared")
    assert story.broken() == []


def test_an_acknowledged_message_that_comes_again_is_found(story: TopicStory) -> None:
    story.subscribe("c")
    story.deliver("c", 0)
    story.ack("c", 0)
    story.subscribe("d")
    story.deliver("d", 0)
    story.content(0)
    assert "came again to d" in story.rejected_by(checkers.acknowledged_comes_no_more)


def test_what_was_under_way_elsewhere_or_sought_back_may_come_again(story: TopicStory) -> None:
    story.content(0)
    story.subscribe("c")
    story.subscribe("d")
    story.deliver("c", 0)
    story.ack("c", 0)
    story.deliver("d", 0)
    story.begin("c", LogOpKind.SEEK, 0, subscription="shared")
    story.subscribe("e")
    story.deliver("e", 0)
    assert story.broken() == []


def test_a_cumulative_acknowledgement_covers_all_before_it(story: TopicStory) -> None:
    story.content(0, 1)
    story.begin("c", LogOpKind.ACK_UP_TO, 1, subscription="failover").ok()
    story.subscribe("d", "failover")
    story.deliver("d", 0, "failover")
    assert "1:0 came again to d" in story.rejected_by(checkers.acknowledged_comes_no_more)


@pytest.mark.parametrize(("subscription", "key"), [("exclusive", None), ("failover", None), ("key-shared", "k")])
def test_a_delivery_before_something_that_stands_before_it_is_found(
    story: TopicStory, subscription: str, key: str | None
) -> None:
    story.content(0, 1, key=key)
    story.deliver("c", 1, subscription, key)
    sentence = story.rejected_by(checkers.deliveries_are_in_order)
    assert sentence == f"c got 1:1 of t/{subscription} before anyone got 1:0"


def test_a_shared_subscription_has_no_order(story: TopicStory) -> None:
    story.content(0, 1)
    story.deliver("c", 1)
    story.deliver("c", 0)
    assert story.broken() == []


def test_a_key_in_two_hands_at_once_is_found(story: TopicStory) -> None:
    story.subscribe("c", "key-shared")
    story.subscribe("d", "key-shared")
    story.deliver("c", 0, "key-shared", "k")
    story.deliver("d", 1, "key-shared", "k")
    story.ack("c", 0, "key-shared")
    story.ack("d", 1, "key-shared")
    assert "while c had 1:0" in story.rejected_by(checkers.one_holder_at_a_time)


def test_a_message_that_was_given_back_may_go_to_another(story: TopicStory) -> None:
    story.subscribe("c")
    story.subscribe("d")
    story.deliver("c", 0)
    story.begin("c", LogOpKind.REDELIVER, 0, subscription="shared").ok()
    story.deliver("d", 0)
    story.ack("c", 0)
    story.ack("d", 0)
    assert story.broken() == []


def test_a_message_before_its_moment_is_found(story: TopicStory) -> None:
    story.publish(0, due_at=9.0)
    story.deliver("c", 0)
    assert "which is due at 9.000s" in story.rejected_by(logs.delays_are_kept)


def test_a_cancelled_message_that_is_stored_is_found(story: TopicStory) -> None:
    story.publish(0, due_at=1.0)
    story.begin("b", LogOpKind.CANCEL, payload="p#0").ok()
    story.content(0)
    assert story.rejected_by(checkers.cancelled_never_comes) == "p#0 of t was cancelled and stands at 1:0"


def test_a_seek_that_was_forgotten_is_found(story: TopicStory) -> None:
    story.content(0, 1)
    story.deliver("c", 0)
    story.begin("c", LogOpKind.SEEK, 0, subscription="shared").ok()
    story.deliver(FINAL, 1)
    story.drained()
    assert "and 1:0 did not come again" in story.rejected_by(checkers.seeks_are_kept)


def test_a_violation_shrinks_to_what_proves_it(story: TopicStory) -> None:
    for number in range(20):
        story.publish(number, number)
    story.content(*range(19))
    violation = logs.acknowledged_is_stored(story.history.ops())[0]
    shortest = shrink(story.history.ops(), violation, CHECKERS)
    assert [op.kind for op in shortest] == [LogOpKind.PUBLISH, LogOpKind.READ_ALL]


def test_every_checker_says_what_it_promises() -> None:
    assert all(checker.__doc__ for checker in CHECKERS)
