"""A simulated world: nodes, their clocks and disks, and the network between them, all decided by one seed.

    async def scenario(world: World) -> bytes:
        server, client = world.node("server"), world.node("client")

        async def serve(runtime: Runtime) -> None:
            listener = await runtime.net.listen("server", 9000)
            while True:
                connection = await listener.accept()
                connection.write([await connection.receive()])

        async def ask(runtime: Runtime) -> bytes:
            connection = await runtime.net.connect("server", 9000)
            connection.write([b"hello"])
            return bytes(await connection.receive())

        server.start(serve)                      # what `restart()` runs again
        answer = await client.start(ask)         # awaiting gives what it returned
        world.net.partition(["server"], ["client"])
        world.net.heal()
        server.disk.faults = DiskFaults(stuck=True)
        server.crash()                           # power loss; `kill()` ends the process only
        server.restart()
        await world.sleep(1.0)
        return answer

    assert simulate(7, scenario) == b"hello"

Code under test must run inside `node.start(...)`, so that it is the node's own and dies with it. A failure of a
task or callback that nobody looked at fails the run at its end.
"""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from weir.testing.world.disk import DiskFaults
from weir.testing.world.loop import SimLoop
from weir.testing.world.net import NetFaults, SimNetwork
from weir.testing.world.node import SimNode
from weir.testing.world.trace import Trace

__all__ = ["DiskFaults", "NetFaults", "SimNode", "World", "simulate"]

_T = TypeVar("_T")


class World:
    """Everything of one simulation. Close it (or use `with`) so that what is left of it goes quietly."""

    def __init__(
        self,
        seed: int,
        *,
        keep_trace: int | None = 0,
        strict: bool = True,
        max_steps: int = 20_000_000,
        max_seconds: float = 86_400.0,
    ) -> None:
        self.seed = seed
        self.loop = SimLoop(max_steps=max_steps, max_seconds=max_seconds)
        self.trace = Trace(keep=keep_trace)
        #: Failures that nobody looked at; unless `strict` is false they fail the run at its end.
        self.unhandled: list[BaseException] = []
        self._strict = strict
        self._streams: dict[str, Random] = {}
        self._nodes: dict[str, SimNode] = {}
        self._note = self._note_event
        self.net = SimNetwork(self.loop, self.rng, self._note)
        self.loop.set_exception_handler(self._on_unhandled)
        self.note("seed", str(seed))

    def rng(self, name: str) -> Random:
        """The stream of randomness of that name: the seed decides it, and no other stream shifts it."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = Random(f"{self.seed}/{name}")
        return stream

    def node(self, name: str) -> SimNode:
        """The node of that name, made and powered on when first asked for."""
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = SimNode(name, self.loop, self.net, self.rng, self._note)
        return node

    @property
    def nodes(self) -> list[SimNode]:
        return list(self._nodes.values())

    @property
    def now(self) -> float:
        """True virtual time in seconds, which no node's clock shows."""
        return self.loop.time()

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass, as the scenario counts it."""
        await asyncio.sleep(seconds)

    def note(self, kind: str, detail: str) -> None:
        """A scenario's own event in the trace."""
        self.trace.add(self.loop.time(), "world", kind, detail)

    def _note_event(self, node: str, kind: str, detail: str) -> None:
        self.trace.add(self.loop.time(), node, kind, detail)

    def run(self, scenario: Coroutine[Any, Any, _T]) -> _T:
        """Run the scenario to its end and return what it returned. May be called again with another."""
        result = self.loop.run_until_complete(scenario)
        if self.unhandled and self._strict:
            failures, self.unhandled = self.unhandled, []
            raise BaseExceptionGroup(f"failures that nobody looked at (seed {self.seed})", failures)
        return result

    def _on_unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context.get("message", "unknown failure"))
        if not self.loop.burying:
            error.add_note(f"simulation, seed {self.seed}: {context.get('message', '')}")
            self.unhandled.append(error)

    def close(self) -> None:
        """End every task that is left, without a trace and without noise. Closing twice is fine."""
        self.loop.close()

    def __enter__(self) -> "World":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def simulate(seed: int, scenario: Callable[[World], Coroutine[Any, Any, _T]], **options: Any) -> _T:
    """Run one scenario in a fresh world (options as for `World`) and return what it returned."""
    with World(seed, **options) as world:
        return world.run(scenario(world))
