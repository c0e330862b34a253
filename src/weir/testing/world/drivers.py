"""The runtimes that one conformance suite runs over: a test is written once, a coroutine of a `ConformanceSite`.

    @on_every_runtime
    async def test_a_new_file_is_empty(place: ConformanceSite) -> None:
        file = await place.runtime.disk.open(f"{place.folder}/f", create=True)
        assert await file.size() == 0

The decorated function asks pytest for a fixture `driver`, which `tests/runtime/conftest.py` gives once for each
of `drivers()`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from weir.runtime.interfaces import Runtime
from weir.testing.world.world import World, simulate

#: The simulated runtime is tried with this many seeds, as each cuts streams and orders events differently.
_SEEDS = 5
#: A test of the real runtime that takes this long hangs.
_HANG_S = 20.0


@dataclass(frozen=True, slots=True)
class ConformanceSite:
    """Where a conformance test runs."""

    runtime: Runtime
    #: The address to listen on and connect to.
    host: str
    #: An empty folder.
    folder: str


ConformanceTest = Callable[[ConformanceSite], Coroutine[Any, Any, None]]
#: Runs a test; the second argument is an empty folder of the real file system.
Driver = Callable[[ConformanceTest, str], None]


def on_simulation(test: ConformanceTest, _folder: str) -> None:
    """Run the test on a simulated node, with several seeds."""

    async def scenario(world: World) -> None:
        async def main(runtime: Runtime) -> None:
            await runtime.disk.make_dirs("/data")
            await test(ConformanceSite(runtime, "node", "/data"))

        await world.node("node").start(main)

    for seed in range(_SEEDS):
        simulate(seed, scenario)


def on_asyncio(test: ConformanceTest, folder: str) -> None:
    """Run the test on the real runtime, on asyncio's own loop."""
    _on_real(test, folder, None)


def on_uvloop(test: ConformanceTest, folder: str) -> None:
    """Run the test on the real runtime, on uvloop."""
    import uvloop

    _on_real(test, folder, uvloop.new_event_loop)


def _on_real(
    test: ConformanceTest, folder: str, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    from weir.runtime.real import real_runtime

    async def main() -> None:
        async with asyncio.timeout(_HANG_S):
            await test(ConformanceSite(real_runtime(), "127.0.0.1", folder))

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def on_scratch(test: ConformanceTest, folder: str) -> None:
    """Run the test on what brokers of the pytest plug-in run on."""
    from weir.pytest_plugin.host.process import IdleLoop, ScratchDisk
    from weir.runtime.adjustable_clock import MovableClock
    from weir.runtime.real import RealClock, real_runtime

    async def main() -> None:
        runtime = replace(real_runtime(), clock=MovableClock(RealClock(), ahead_s=3600.0), disk=ScratchDisk())
        async with asyncio.timeout(_HANG_S):
            await test(ConformanceSite(runtime, "127.0.0.1", folder))

    with asyncio.Runner(loop_factory=IdleLoop) as runner:
        runner.run(main())


def drivers() -> dict[str, Driver]:
    """Every runtime that can run here, by name."""
    found: dict[str, Driver] = {"simulated": on_simulation, "asyncio": on_asyncio, "scratch": on_scratch}
    try:
        import uvloop  # noqa: F401
    except ImportError:
        return found
    return {**found, "uvloop": on_uvloop}


def on_every_runtime(test: ConformanceTest) -> Callable[[Driver, Any], None]:
    """Make a pytest test of a coroutine that takes a `ConformanceSite`."""

    def run(driver: Driver, tmp_path: Any) -> None:
        driver(test, str(tmp_path))

    # Not functools.wraps: pytest would look through it and take `place` for a fixture.
    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    run.__module__ = test.__module__
    return run
