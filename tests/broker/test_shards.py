"""Homes of coordinators: state that one broker at a time can make durable."""

import asyncio
from collections.abc import Callable

import pytest

from weir.broker.shards import COORDINATOR, Homes
from weir.model.errors import StreamFencedError, TopicNotFoundError
from weir.model.topics import NamespaceName


def test_what_was_flushed_is_there_for_the_next_holder_and_the_former_one_learns_of_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        first = Homes(await bench.broker())
        home = await first.of("group/a")
        assert home is await first.of("group/b")
        home.state.put("a", b"1")
        home.state.put("b", b"2")
        await home.state.flush()
        died = asyncio.Event()
        home.on_death(died.set)
        second = Homes(await bench.broker())
        other = await second.of("group/a")
        assert [other.state.get(key) for key in ("a", "b")] == [b"1", b"2"]
        home.state.put("a", b"3")
        with pytest.raises(StreamFencedError):
            await home.state.flush()
        await died.wait()
        assert not home.alive
        assert other.alive
        assert [home.alive for home in await second.here()] == [True]

    run(scenario)


def test_a_home_that_died_is_loaded_anew(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        homes = Homes(broker)
        home = await homes.of("x")
        home.state.put("a", b"1")
        await home.state.flush()
        await broker.unload(COORDINATOR)
        assert not home.alive
        again = await homes.of("x")
        assert again is not home
        assert again.state.get("a") == b"1"

    run(scenario)


def test_users_neither_see_nor_get_it(run: Callable) -> None:
    async def scenario(bench) -> None:
        broker = await bench.broker()
        await Homes(broker).of("x")
        assert broker.loaded == []
        with pytest.raises(TopicNotFoundError):
            await broker.topic(COORDINATOR, role="r")
        with pytest.raises(TopicNotFoundError):
            await broker.partitions(COORDINATOR, role="r")
        assert await broker.topics(str(NamespaceName("public", "default")), role="r") == []

    run(scenario)
