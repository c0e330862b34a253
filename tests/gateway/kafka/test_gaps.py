"""What an idempotent producer has under way behind a batch that was not stored waits until that is sent again."""

import pytest

from weir.broker.api.topics import ProducerInfo
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.produce.sequence_gaps import Gaps
from weir.model.batch import Stamp
from weir.model.errors import LedgerError, OutOfOrderSequenceError, ProducerClosedError, WeirError
from weir.model.topics import TopicName
from weir.testing.broker.fake import FakeTopic
from weir.testing.kafka.stage import Stage, batch_of, play

_KEY = ("orders", 0)
_LAST = 0x7FFFFFFF


def test_what_is_behind_a_missing_batch_is_refused_until_that_one_comes_again() -> None:
    gaps = Gaps()
    gaps.note(_KEY, Stamp(7, 0, 3))
    gaps.note(_KEY, Stamp(7, 0, 4))
    for sequence in (4, 5, 4, 6):
        with pytest.raises(ProducerClosedError, match="3 is missing"):
            gaps.check(_KEY, Stamp(7, 0, sequence))
    with pytest.raises(OutOfOrderSequenceError, match="3 is missing"):  # nothing can be under way any more
        gaps.check(_KEY, Stamp(7, 0, 4))
    gaps.check(_KEY, Stamp(7, 0, 3))
    gaps.check(_KEY, Stamp(7, 0, 4))


def test_others_are_not_held_up() -> None:
    gaps = Gaps()
    gaps.note(_KEY, Stamp(7, 0, 3))
    gaps.note(_KEY, None)
    gaps.check(_KEY, None)
    gaps.check(_KEY, Stamp(8, 0, 4))
    gaps.check(("orders", 1), Stamp(7, 0, 4))
    with pytest.raises(ProducerClosedError):
        gaps.check(_KEY, Stamp(7, 0, 4))


@pytest.mark.parametrize("stamp", [Stamp(7, 1, 0), Stamp(7, 1, 9), Stamp(7, 0, 2)])
def test_a_producer_that_goes_back_or_begins_a_new_epoch_is_not_held_up(stamp: Stamp) -> None:
    gaps = Gaps()
    gaps.note(_KEY, Stamp(7, 0, 3))
    gaps.check(_KEY, stamp)
    gaps.check(_KEY, Stamp(7, 0, 4))


def test_sequence_numbers_begin_anew_after_the_last() -> None:
    gaps = Gaps()
    gaps.note(_KEY, Stamp(7, 0, _LAST))
    with pytest.raises(ProducerClosedError):
        gaps.check(_KEY, Stamp(7, 0, 0))


def test_what_another_broker_stored_meanwhile_is_not_missed() -> None:
    gaps, topic = Gaps(), FakeTopic(TopicName.parse("orders").at(0))
    topic.known_producers = [
        ProducerInfo(7, 0, last_sequence=5, last_ms=0),
        ProducerInfo(8, 0, last_sequence=-1, last_ms=0),
    ]
    gaps.note(_KEY, Stamp(7, 0, 3))
    gaps.note(_KEY, Stamp(8, 0, 3))
    gaps.check(_KEY, Stamp(7, 0, 6), topic)
    with pytest.raises(ProducerClosedError):
        gaps.check(_KEY, Stamp(8, 0, 4), topic)


def test_only_so_many_are_remembered() -> None:
    gaps = Gaps()
    for producer_id in range(1001):
        gaps.note(_KEY, Stamp(producer_id, 0, 3))
    gaps.check(_KEY, Stamp(0, 0, 4))
    with pytest.raises(ProducerClosedError):
        gaps.check(_KEY, Stamp(1, 0, 4))


def test_the_first_batch_of_a_producer_is_stored_first_also_if_its_topic_was_not_there_in_time() -> None:
    async def conversation(stage: Stage) -> None:
        peer = await stage.peer()
        first, second = batch_of(b"a", stamp=Stamp(7, 0, 0)), batch_of(b"b", stamp=Stamp(7, 0, 1))
        peer.produce("orders", first)
        assert (await peer.produced()).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
        topic = await stage.topic()
        peer.produce("orders", second)
        assert (await peer.produced()).error_code == Code.NOT_LEADER_OR_FOLLOWER
        for batch in (first, second):
            peer.produce("orders", batch)
            assert (await peer.produced()).error_code == Code.NONE
        assert [bytes(batch.payload) for batch in topic.batches] == [first, second]

    play(conversation)


def test_behind_a_batch_that_failed_and_is_stored_all_the_same_nobody_hears_of_disorder() -> None:
    """librdkafka begins a new epoch when it does, and sends anew what is stored."""

    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        topic.held_back = True
        peer = await stage.peer()
        batches = [batch_of(b"%d" % n, stamp=Stamp(7, 0, n)) for n in range(3)]

        async def refused(batch: bytes, failure: WeirError) -> int:
            peer.produce("orders", batch)
            await stage.later(1)
            topic.producers[-1].store(failure)
            return (await peer.produced()).error_code

        assert await refused(batches[0], LedgerError("its bookies went away")) == Code.KAFKA_STORAGE_ERROR
        topic.known_producers = [ProducerInfo(7, 0, last_sequence=0, last_ms=0)]
        behind = [await refused(batches[2], OutOfOrderSequenceError("1 follows")) for _ in range(5)]
        assert behind == [*[Code.NOT_LEADER_OR_FOLLOWER] * 4, Code.OUT_OF_ORDER_SEQUENCE_NUMBER]

    play(conversation)
