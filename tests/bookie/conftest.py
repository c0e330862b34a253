"""Fixtures for bookies on simulated and on real disks."""

from collections.abc import Awaitable, Callable

import pytest

from weir.bookie.bookie import Bookie
from weir.bookie.settings import BookieSettings
from weir.runtime.interfaces import Runtime
from weir.testing.storage.bookies import tiny_settings
from weir.testing.world.world import World, simulate

Story = Callable[[Bookie, Runtime], Awaitable[None]]


@pytest.fixture
def tell() -> Callable[..., None]:
    """Run a story with a fresh bookie, as the program of a simulated node."""

    def run(story: Story, settings: BookieSettings | None = None, seed: int = 1) -> None:
        chosen = settings or tiny_settings()

        async def main(runtime: Runtime) -> None:
            bookie = await Bookie.open(runtime, chosen)
            await story(bookie, runtime)

        async def scenario(world: World) -> None:
            await world.node("bookie").start(main)

        simulate(seed, scenario)

    return run
