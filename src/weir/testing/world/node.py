"""A simulated node: a machine with a disk and a clock, and the incarnations of the process that runs on it."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from random import Random
from typing import Any, TypeVar

from weir.runtime.interfaces import Runtime
from weir.testing.world.clock import ClockHardware, NodeClock
from weir.testing.world.disk import NodeDisk, SimDisk
from weir.testing.world.errors import NodeCrashedError
from weir.testing.world.incarnation import Incarnation
from weir.testing.world.loop import SimLoop
from weir.testing.world.net import NodeNetwork, SimNetwork
from weir.testing.world.resources import SimResources

_T = TypeVar("_T")
Main = Callable[[Runtime], Coroutine[Any, Any, _T]]


class SimNode:
    """One machine of the world. Made by `World.node`."""

    def __init__(
        self,
        name: str,
        loop: SimLoop,
        net: SimNetwork,
        rng: Callable[[str], Random],
        note: Callable[[str, str, str], None],
    ) -> None:
        self.name = name
        self.clock = ClockHardware(loop)
        self.resources = SimResources()
        self.disk = SimDisk(name, loop, rng(f"disk/{name}"), note)
        #: What ended the process by itself, if anything did.
        self.failure: BaseException | None = None
        self._loop = loop
        self._net = net
        self._rng = rng
        self._note = note
        self._main: Main[Any] | None = None
        self._incarnations = 0
        self._incarnation: Incarnation | None = None
        self._runtime: Runtime | None = None
        self._boot()

    # --- what it is ---------------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        return self._incarnation is not None

    @property
    def runtime(self) -> Runtime:
        """What the current incarnation sees of the world; a new one after each crash."""
        if self._runtime is None:
            raise NodeCrashedError(f"{self.name} is down")
        return self._runtime

    @property
    def clock_skew(self) -> float:
        """How many seconds the wall clock is ahead of true time."""
        return self.clock.skew_s

    @clock_skew.setter
    def clock_skew(self, seconds: float) -> None:
        self.clock.skew_s = seconds
        self._note(self.name, "clock-skew", repr(seconds))

    # --- what happens to it -------------------------------------------------------------------------------

    def start(self, main: Main[_T]) -> "asyncio.Future[_T]":
        """Run `main` as this node's program, powering it on if it is down; `restart` runs it again.

        The future has what it returned or raised, or NodeCrashedError if the node went down first. When `main`
        returns, its background tasks live on; when it fails, the process exits, as `kill()` does.
        """
        self._main = main
        return self.run(main)

    def run(self, main: Main[_T]) -> "asyncio.Future[_T]":
        """Like `start`, but beside the node's program, and not again after a restart."""
        incarnation = self._incarnation or self._boot()
        outcome: asyncio.Future[_T] = self._loop.create_future()
        incarnation.outcomes[outcome] = None
        task = self._loop.create_task(
            main(self.runtime),
            name=f"{incarnation.name}/{getattr(main, '__name__', 'main')}",
            context=incarnation.context(),
        )

        def ended(task: "asyncio.Task[_T]") -> None:
            incarnation.outcomes.pop(outcome, None)
            failure = asyncio.CancelledError() if task.cancelled() else task.exception()
            if outcome.done():
                return
            if failure is None:
                outcome.set_result(task.result())
                return
            if isinstance(failure, asyncio.CancelledError):
                outcome.cancel()
            else:
                outcome.set_exception(failure)
            if incarnation.alive:
                self.failure = failure
                self._note(self.name, "failed", type(failure).__name__)
                self.kill()

        task.add_done_callback(ended, context=Context())
        return outcome

    def crash(self, *, power_loss: bool = True) -> None:
        """End the incarnation at this very moment: none of its tasks and callbacks runs again. With power loss
        the disk forgets what was not synced. Fine if it is down."""
        incarnation = self._incarnation
        if incarnation is None:
            return
        self._note(self.name, "crash" if power_loss else "kill", incarnation.name)
        self._incarnation = self._runtime = None
        incarnation.end()
        self.disk.crash(power_loss=power_loss)
        self._net.node_down(incarnation, power_loss=power_loss)

    def kill(self) -> None:
        """End the process but not the machine: what was written, synced or not, is still there."""
        self.crash(power_loss=False)

    def restart(self) -> "asyncio.Future[Any]":
        """Crash it if it is up, power it on, and run its program again."""
        self.crash()
        if self._main is None:
            raise NodeCrashedError(f"{self.name} has no program: start() it first")
        return self.start(self._main)

    def pause(self) -> None:
        """Freeze the process, as a long stall would: time goes on, messages arrive, nothing of it runs."""
        if self._incarnation is not None:
            self._note(self.name, "pause", self._incarnation.name)
            self._incarnation.paused = True

    def resume(self) -> None:
        """Let a paused process go on."""
        if self._incarnation is not None and self._incarnation.paused:
            self._note(self.name, "resume", self._incarnation.name)
            self._loop.resume(self._incarnation)

    def _boot(self) -> Incarnation:
        self._incarnations += 1
        incarnation = self._incarnation = Incarnation(self.name, self._incarnations)
        self._loop.adopt(incarnation)
        self._net.node_up(self.name)
        self._note(self.name, "boot", incarnation.name)
        rng = self._rng(f"node/{self.name}/{self._incarnations}")
        self._runtime = Runtime(
            clock=NodeClock(self.clock, self._loop, incarnation, offset=rng.uniform(0.0, 1_000_000.0)),
            net=NodeNetwork(self._net, incarnation),
            disk=NodeDisk(self.disk, incarnation),
            rng=rng,
            resources=self.resources,
        )
        return incarnation
