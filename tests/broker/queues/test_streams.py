"""Streams: each consumer reads all of it, from where it likes, and nothing is taken away."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from weir.broker.api.queues import ConsumeRequest
from weir.model.errors import QueueArgumentError
from weir.model.policies import Retention

ANN = "ann"
STREAM = {"arguments": {"x-queue-type": "stream"}}


async def filled(stage: Any) -> Any:
    """Three entries of two messages, a minute between them."""
    queue = await stage.declare(**STREAM)
    for texts in ("ab", "cd", "ef"):
        await stage.publish(queue, *texts)
        await stage.runtime.clock.sleep(60)
    return queue


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("first", "abcdef"),
        ("last", "ef"),
        (3, "def"),
        (100, ""),
        ("next", ""),
        (None, ""),
        ("90s", "ef"),
        ("1h", "abcdef"),
    ],
)
def test_a_consumer_begins_where_it_says(run: Callable, offset: Any, expected: str) -> None:
    async def scenario(stage: Any) -> None:
        queue = await filled(stage)
        consumer = await stage.consumer(queue, stream_offset=offset)
        await stage.publish(queue, "new")
        assert await stage.texts(consumer, len(expected) + 1) == [*expected, "new"]
        assert await stage.nothing(consumer)

    run(scenario)


def test_a_consumer_begins_at_a_moment(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await filled(stage)
        moment = datetime.fromtimestamp(stage.runtime.clock.wall_ms() / 1000 - 150, UTC)
        consumer = await stage.consumer(queue, stream_offset=moment)
        assert await stage.texts(consumer, 4) == ["c", "d", "e", "f"]

    run(scenario)


def test_every_consumer_sees_all_exactly_as_its_credit_says_and_nothing_is_taken_away(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await filled(stage)
        one, two = [await stage.consumer(queue, stream_offset="first") for _ in range(2)]
        assert await stage.texts(one, 3) == ["a", "b", "c"]
        assert await stage.counts(queue) == (6, 3, 2)
        one.ack([(0, 1)])
        one.requeue([(1, 2)])
        one.reject([(2, 3)])
        assert await stage.texts(one, 3) == ["d", "e", "f"]
        assert await stage.texts(two, 6) == list("abcdef")
        await one.close()
        two.retire()
        await two.close()
        assert await stage.counts(queue) == (6, 0, 0)
        assert (await stage.topic()).subscriptions == {}

    run(scenario)


def test_messages_of_a_stream_are_neither_got_nor_purged(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        queue = await filled(stage)
        for call in (queue.getter(ANN), queue.purge()):
            with pytest.raises(QueueArgumentError, match="is a stream"):
                await call
        for wrong in ("yesterday", -1, True, 1.5):
            with pytest.raises(QueueArgumentError, match="x-stream-offset"):
                await queue.consume(ConsumeRequest(ANN, stream_offset=wrong))

    run(scenario)


def test_a_stream_keeps_what_nobody_reads_as_long_as_it_says(run: Callable) -> None:
    async def scenario(stage: Any) -> None:
        await stage.declare("all", **STREAM)
        some = {"x-queue-type": "stream", "x-max-age": "1h", "x-max-length-bytes": 5000}
        await stage.declare("some", arguments=some)
        assert (await stage.topic("all")).policies.retention == Retention(-1, -1)
        assert (await stage.topic("some")).policies.retention == Retention.exactly(3_600_000, 5000)

    run(scenario)
