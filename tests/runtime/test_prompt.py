"""Results of prompt futures are told at once, failures as ever; nobody is told twice."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from weir.runtime.waiters import PromptFuture, tell_promptly


async def test_a_result_is_told_before_set_result_returns_and_only_once() -> None:
    told: list[int] = []
    future: PromptFuture[int] = PromptFuture()
    tell_promptly(future, lambda done: told.append(done.result()))
    future.add_done_callback(lambda done: told.append(-done.result()))
    future.set_result(7)
    assert told == [7]
    await asyncio.sleep(0)
    assert told == [7, -7]
    assert await future == 7


@pytest.mark.parametrize(
    "end", [lambda future: future.set_exception(OSError("x")), lambda future: future.cancel()]
)
async def test_a_failure_is_told_a_turn_later_as_by_any_future(end: Callable[[Any], None]) -> None:
    told: list[object] = []
    future: PromptFuture[int] = PromptFuture()
    tell_promptly(future, told.append)
    end(future)
    assert told == []
    await asyncio.sleep(0)
    assert told == [future]
    assert future.cancelled() or isinstance(future.exception(), OSError)


async def test_who_asks_after_the_result_is_told_a_turn_later() -> None:
    told: list[object] = []
    future: PromptFuture[int] = PromptFuture()
    future.set_result(1)
    tell_promptly(future, told.append)
    assert told == []
    await asyncio.sleep(0)
    assert told == [future]


async def test_what_fails_in_a_callback_is_not_whose_who_has_the_result() -> None:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    told: list[object] = []
    future: PromptFuture[int] = PromptFuture()
    tell_promptly(future, lambda done: 1 // 0)
    tell_promptly(future, told.append)
    future.set_result(1)
    assert told == [future]
    assert isinstance(failures[0], ZeroDivisionError)
