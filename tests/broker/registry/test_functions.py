"""Functions in the metadata: versions, what is said of them, and the lease of the one process that runs them."""

from collections.abc import Awaitable, Callable

import pytest

from weir.broker.api.definitions import Definition
from weir.broker.metadata.definitions import Functions
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.definitions import FunctionStats, FunctionWanted
from weir.model.errors import FunctionExistsError, FunctionNotFoundError, RunnerBusyError
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.interfaces import Runtime
from weir.testing.world.world import World, simulate

F, SOURCE = TopicName.parse("clean"), TopicName.parse("orders")


def definition(code: str = "def clean(message): ...") -> Definition:
    return Definition(code, "f.py", "clean", (SOURCE,), None, {})


def run(scenario: Callable[[Functions, Runtime], Awaitable[None]]) -> None:
    async def main(world: World) -> None:
        async def on_node(runtime: Runtime) -> None:
            await scenario(Functions(MemoryMeta(MemoryCore(runtime.clock), runtime), runtime), runtime)

        await world.node("broker").start(on_node)

    simulate(1, main)


def test_a_function_is_deployed_once_and_each_change_is_a_version() -> None:
    async def story(functions: Functions, _runtime: Runtime) -> None:
        with pytest.raises(FunctionNotFoundError):
            await functions.update(F, definition(), role="me")
        made = await functions.deploy(F, definition(), role="me")
        assert await functions.deploy(F, definition(), role="you") == made
        with pytest.raises(FunctionExistsError):
            await functions.deploy(F, definition("other"), role="me")
        assert (await functions.update(F, definition(), role="you")).version == 1
        updated = await functions.update(F, definition("other"), role="you")
        assert (updated.id, updated.version, updated.role) == (made.id, 2, "you")
        stopped = await functions.want(F, FunctionWanted.STOPPED)
        assert (stopped.wanted, stopped.version) == (FunctionWanted.STOPPED, 2)

    run(story)


def test_functions_are_listed_by_namespace_and_deleted() -> None:
    async def story(functions: Functions, _runtime: Runtime) -> None:
        made = await functions.deploy(F, definition(), role="")
        await functions.deploy(TopicName.parse("public/other/y"), definition(), role="")
        assert [one.function.name.local for one in await functions.list()] == ["clean", "y"]
        assert [one.function.name.local for one in await functions.list(NamespaceName("public", "other"))] == ["y"]
        await functions.delete(F)
        for gone in (functions.delete(F), functions.get(F), functions.want(F, FunctionWanted.RUNNING)):
            with pytest.raises(FunctionNotFoundError):
                await gone
        assert (await functions.deploy(F, definition(), role="")).id != made.id

    run(story)


def test_two_of_one_name_in_two_namespaces_do_not_share_a_subscription() -> None:
    async def story(functions: Functions, _runtime: Runtime) -> None:
        there = TopicName.parse("public/other/clean")
        other = Definition("", "f.py", "clean", (TopicName.parse("returns"),), None, {})
        await functions.deploy(F, definition(), role="")
        with pytest.raises(FunctionExistsError, match="reads persistent://public/default/orders"):
            await functions.deploy(there, definition(), role="")
        await functions.deploy(there, other, role="")
        with pytest.raises(FunctionExistsError, match="by the same subscription"):
            await functions.update(there, definition(), role="")

    run(story)


def test_stats_are_of_the_function_that_has_the_name_now() -> None:
    async def story(functions: Functions, _runtime: Runtime) -> None:
        first = await functions.deploy(F, definition(), role="")
        await functions.report(F, FunctionStats(first.id, 1, "running", received=3))
        told = (await functions.get(F)).stats
        assert told is not None
        assert (told.received, told.reported_ms > 0) == (3, True)
        await functions.delete(F)
        await functions.deploy(F, definition(), role="")
        assert (await functions.get(F)).stats is None
        with pytest.raises(FunctionNotFoundError):
            await functions.report(F, FunctionStats(first.id, 1, "running"))

    run(story)


def test_one_process_runs_the_functions_until_its_lease_ends() -> None:
    async def story(functions: Functions, runtime: Runtime) -> None:
        await functions.take_runner("a", "here", 1_000)
        with pytest.raises(RunnerBusyError):
            await functions.take_runner("b", "there", 1_000)
        await functions.release_runner("b")
        await runtime.clock.sleep(1.1)
        assert await functions.runner() is None
        assert (await functions.take_runner("b", "there", 1_000)).where == "there"
        await functions.release_runner("b")
        assert await functions.runner() is None

    run(story)
