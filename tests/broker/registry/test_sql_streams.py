"""Definitions of SQL streams in the metadata, and the lease of the one process that runs them."""

from collections.abc import Awaitable, Callable

import pytest

from weir.broker.metadata.definitions import SqlStreams
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.definitions import SqlStream, StreamProgress, Wanted
from weir.model.errors import RunnerBusyError, SqlStreamExistsError, SqlStreamNotFoundError
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.interfaces import Runtime
from weir.testing.world.world import World, simulate

X, SOURCE = TopicName.parse("x"), TopicName.parse("orders")


async def define(streams: SqlStreams, name: TopicName = X, *, sql: str = "SELECT 1") -> SqlStream:
    return await streams.put(name, sql=sql, sources=(SOURCE,), options={}, wanted=Wanted.RUNNING, role="me")


def run(scenario: Callable[[SqlStreams, Runtime], Awaitable[None]]) -> None:
    async def main(world: World) -> None:
        async def on_node(runtime: Runtime) -> None:
            await scenario(SqlStreams(MemoryMeta(MemoryCore(runtime.clock), runtime), runtime), runtime)

        await world.node("broker").start(on_node)

    simulate(1, main)


def test_a_stream_is_defined_once_paused_and_dropped() -> None:
    async def story(streams: SqlStreams, _runtime: Runtime) -> None:
        made = await define(streams)
        assert await define(streams) == made
        with pytest.raises(SqlStreamExistsError):
            await define(streams, sql="SELECT 2")
        paused = await streams.put(X, sql="SELECT 1", sources=(SOURCE,), options={}, wanted=Wanted.PAUSED, role="")
        assert (paused.id, paused.wanted) == (made.id, Wanted.PAUSED)
        await define(streams, TopicName.parse("public/other/y"))
        assert [one.stream.name.local for one in await streams.list()] == ["x", "y"]
        assert [one.stream.name.local for one in await streams.list(NamespaceName("public", "other"))] == ["y"]
        await streams.delete(X)
        with pytest.raises(SqlStreamNotFoundError):
            await streams.delete(X)
        assert (await define(streams)).id != made.id

    run(story)


def test_progress_is_of_the_stream_that_has_the_name_now() -> None:
    async def story(streams: SqlStreams, _runtime: Runtime) -> None:
        first = await define(streams)
        await streams.report(X, StreamProgress(first.id, "running", rows=3))
        told = (await streams.get(X)).progress
        assert told is not None
        assert (told.rows, told.reported_ms > 0) == (3, True)
        await streams.delete(X)
        await define(streams)
        assert (await streams.get(X)).progress is None
        with pytest.raises(SqlStreamNotFoundError):
            await streams.report(X, StreamProgress(first.id, "running"))

    run(story)


def test_there_is_one_runner_until_it_is_silent_for_too_long() -> None:
    async def story(streams: SqlStreams, runtime: Runtime) -> None:
        await streams.take_runner("one", "here", 10_000)
        with pytest.raises(RunnerBusyError, match="here"):
            await streams.take_runner("two", "there", 10_000)
        await runtime.clock.sleep(8)
        await streams.take_runner("one", "here", 10_000)
        await runtime.clock.sleep(8)
        with pytest.raises(RunnerBusyError):
            await streams.take_runner("two", "there", 10_000)
        await runtime.clock.sleep(3)
        assert await streams.runner() is None
        await streams.take_runner("two", "there", 10_000)
        await streams.release_runner("one")
        found = await streams.runner()
        assert found is not None
        assert found.where == "there"
        await streams.release_runner("two")
        assert await streams.runner() is None
        await streams.take_runner("one", "here", 10_000)

    run(story)


def test_a_dropped_stream_is_known_until_its_runner_has_cleaned_up_after_it() -> None:
    async def story(streams: SqlStreams, _runtime: Runtime) -> None:
        first = await define(streams)
        assert await streams.dropped() == []
        await streams.delete(X)
        second = await define(streams)
        await streams.delete(X)
        assert sorted(one.id for one in await streams.dropped()) == sorted([first.id, second.id])
        await streams.forget_dropped(first.id)
        await streams.forget_dropped(first.id)
        assert list(await streams.dropped()) == [second]

    run(story)
