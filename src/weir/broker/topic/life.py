"""Whether a topic is served here: until it is closed, or somebody else has taken its log over."""

import asyncio
from collections.abc import Callable

from weir.model.errors import TopicClosedError
from weir.model.topics import TopicName


class Life:
    def __init__(self, name: TopicName) -> None:
        self._name = name
        self._dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.alive = True

    @property
    def dead(self) -> bool:
        return self._dead.done()

    def check(self) -> None:
        """TopicClosedError."""
        if not self.alive:
            why = self._dead.result() if self._dead.done() else "it is being closed"
            raise TopicClosedError(f"{self._name} is not served here any more: {why}")

    def on_death(self, callback: Callable[[], None]) -> None:
        """Call a plain function, soon, once the topic is of no more use."""
        self._dead.add_done_callback(lambda _: callback())

    def closing(self) -> None:
        """By this broker itself: nobody is told of a death."""
        self.alive = False

    def die(self, why: str) -> None:
        self.alive = False
        self._dead.set_result(why)
