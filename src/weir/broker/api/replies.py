"""Answers that go straight to whoever asked, without a queue."""

from collections.abc import Sequence
from typing import Protocol

from weir.model.ids import Buffer


class ReplyReceiver(Protocol):
    def take_reply(self, parts: Sequence[Buffer]) -> None:
        """`parts`: as they were given to `deliver`. One that cannot take it lets it go."""


class DirectReplies(Protocol):
    """Who waits for answers, on any broker, by names that nobody can guess who was not told. An answer is stored
    nowhere: who waits no more gets none."""

    def expect(self, receiver: ReplyReceiver) -> str:
        """The name that stands for it from now on."""

    def forget(self, name: str) -> None: ...

    async def expected(self, name: str) -> bool:
        """Whether somebody waits under this name."""

    async def deliver(self, name: str, parts: Sequence[Buffer]) -> bool:
        """Whether there was somebody to give it to. Who awaits one before the next has them arrive in order."""
