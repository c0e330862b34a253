"""A future whose result is told at once, to those who ask for that, and not a turn of the loop later.

What is stored goes up through four layers before its sender is told. A turn of the loop for each of them costs
more than all that they do, and holds up the answer behind whatever else these turns bring.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class PromptFuture(asyncio.Future[T]):
    """A result calls those of `tell_promptly` before `set_result` returns, in the order in which they asked; they
    are plain functions that may not count on a turn in between. Failures, and all others, take the usual way."""

    _prompt: list[Callable[["asyncio.Future[T]"], object]] | None = None

    def set_result(self, result: T, /) -> None:
        prompt, self._prompt = self._prompt, None
        if prompt is None:
            super().set_result(result)
            return
        for callback in prompt:
            self.remove_done_callback(callback)
        super().set_result(result)
        for callback in prompt:
            try:
                callback(self)
            except Exception as failure:  # as the loop would: it is no business of whoever has the result
                self.get_loop().call_exception_handler(
                    {"message": f"{callback!r} failed", "exception": failure, "future": self}
                )

    def add_prompt_callback(self, callback: Callable[["asyncio.Future[T]"], object]) -> None:
        self.add_done_callback(callback)
        if not self.done():
            if self._prompt is None:
                self._prompt = [callback]
            else:
                self._prompt.append(callback)


def tell_promptly(future: "asyncio.Future[T]", callback: Callable[["asyncio.Future[Any]"], object]) -> None:
    """Have a function called with the future when it is done: at once with its result, if it is a prompt one."""
    if isinstance(future, PromptFuture):
        future.add_prompt_callback(callback)
    else:
        future.add_done_callback(callback)
