"""CoordinatorShards of coordinators: state that one broker at a time can make durable."""

import asyncio
from collections.abc import Callable

import pytest

from weir.broker.coordinator_shards import COORDINATOR, CoordinatorShards
from weir.model.errors import StreamFencedError, TopicNotFoundError
from weir.model.topics import NamespaceName


def test_what_was_flushed_is_there_for_the_next_holder_and_the_former_one_learns_of_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        first = CoordinatorShards(await bench.broker())
        shard = await first.of("group/a")
        assert shard is await first.of("group/b")
        shard.state.put("a", b"1")
        shard.state.put("b", b"2")
        await shard.state.flush()
        died = asyncio.Event()
        shard.on_death(died.set)
        second = CoordinatorShards(await bench.broker())
        other = await second.of("group/a")
        assert [other.state.get(key) for key in ("a", "b")] == [b"1", b"2"]
        shard.state.put("a", b"3")
        with pytest.raises(StreamFencedError):
            await shard.state.flush()
        await died.wait()
        assert not shard.alive
        assert other.alive
        assert [shard.alive for shard in await second.here()] == [True]

    run(scenario)


def test_a_home_that_died_is_loaded_anew(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        shards = CoordinatorShards(broker)
        shard = await shards.of("x")
        shard.state.put("a", b"1")
        await shard.state.flush()
        await broker.unload(COORDINATOR)
        assert not shard.alive
        again = await shards.of("x")
        assert again is not shard
        assert again.state.get("a") == b"1"

    run(scenario)


def test_users_neither_see_nor_get_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        await CoordinatorShards(broker).of("x")
        assert broker.loaded == []
        with pytest.raises(TopicNotFoundError):
            await broker.topic(COORDINATOR, role="r")
        with pytest.raises(TopicNotFoundError):
            await broker.partitions(COORDINATOR, role="r")
        assert await broker.topics(str(NamespaceName("public", "default")), role="r") == []

    run(scenario)
