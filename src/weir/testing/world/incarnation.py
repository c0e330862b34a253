"""One life of a simulated node: whatever it started never runs again once it is over."""

import asyncio
from collections.abc import Iterator
from contextvars import Context, ContextVar
from typing import Any, NoReturn

from weir.testing.world.errors import NodeCrashedError

#: Whose code runs now; None for the scenario and the world themselves.
current_incarnation: ContextVar["Incarnation | None"] = ContextVar("current_incarnation", default=None)


class Incarnation:
    """The tasks and callbacks between a node's start and its crash.

    Membership is inherited through the context, so a task belongs to the node whose task created it, however
    it was created. Tasks are held strongly, in order: a task of a dead node is kept as it stood, since its
    `finally` blocks must not run when power is lost, and a pending one may not vanish with the garbage.
    """

    __slots__ = ("_prune_at", "_tasks", "alive", "held", "name", "node", "number", "outcomes", "paused")

    def __init__(self, node: str, number: int) -> None:
        self.node = node
        self.number = number
        self.name = f"{node}#{number}"
        self.alive = True
        self.paused = False
        #: Calls that became due while the node was paused, in order.
        self.held: list[asyncio.Handle] = []
        #: What someone outside awaits of this incarnation; fails when it dies.
        self.outcomes: dict[asyncio.Future[Any], None] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = 64

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Remember a task; forgets finished ones now and then, at a cost that amortises to nothing."""
        self._tasks.append(task)
        if len(self._tasks) >= self._prune_at and self.alive:
            self.forget_finished()

    def forget_finished(self) -> None:
        """Let finished tasks go; one whose failure nobody looked at then reports it."""
        if self.alive:
            self._tasks = self.pending_tasks()
            self._prune_at = max(64, 2 * len(self._tasks))

    def all_tasks(self) -> Iterator[asyncio.Task[Any]]:
        """Every task that is remembered, also those that come while iterating."""
        return iter(self._tasks)

    def pending_tasks(self) -> list[asyncio.Task[Any]]:
        """Tasks that have not ended, in the order of their creation."""
        return [task for task in self._tasks if not task.done()]

    def context(self) -> Context:
        """A fresh context in which code belongs to this incarnation."""
        context = Context()
        context.run(current_incarnation.set, self)
        return context

    def end(self) -> None:
        """Nothing of it runs from here on; whoever awaits it from outside is told."""
        self.alive = False
        self.held.clear()
        outcomes, self.outcomes = self.outcomes, {}
        for outcome in outcomes:
            if not outcome.done():
                outcome.set_exception(NodeCrashedError(f"{self.name} crashed"))
                outcome.exception()  # whether anyone looks at it is up to the scenario

    async def gone(self) -> NoReturn:
        """What an I/O operation of a dead incarnation comes to: its own code hangs, others get an error."""
        if current_incarnation.get() is self and not getattr(asyncio.get_running_loop(), "burying", False):
            await asyncio.get_running_loop().create_future()
        raise NodeCrashedError(f"{self.name} is down")
