"""A topic knows in which leader epoch its messages were written."""

from collections.abc import Callable

from weir.broker.topics.topic import BrokerTopic
from weir.model.policies import DEFAULT_POLICIES
from weir.model.topics import TopicName

NAME = TopicName.parse("t")


async def _led(bench, epoch: int) -> BrokerTopic:
    return await BrokerTopic.open(await bench.context(), NAME, DEFAULT_POLICIES, epoch)


def test_an_epoch_ends_where_the_next_that_wrote_began_also_after_a_crash(run: Callable) -> None:
    async def scenario(bench) -> None:
        for epoch in (1, 4):
            topic = await _led(bench, epoch)  # the one before is fenced, not closed
            await bench.publish(await bench.producer(topic), "a", "b")
        await _led(bench, 6)
        topic = await _led(bench, 9)
        assert topic.leader_epoch == 9
        assert [topic.epoch_end(epoch) for epoch in (0, 1, 3, 4, 6, 9)] == [
            (0, 0),
            (1, 2),
            (1, 2),
            (4, 4),
            (4, 4),
            (9, 4),
        ]
        assert topic.epoch_end(10) == (-1, -1)
        assert [topic.epoch_at(offset) for offset in range(5)] == [1, 1, 4, 4, 9]

    run(scenario)


def test_a_leader_epoch_never_goes_back(run: Callable) -> None:
    async def scenario(bench) -> None:
        await _led(bench, 5)
        topic = await _led(bench, 3)
        assert topic.leader_epoch == 5

    run(scenario)
