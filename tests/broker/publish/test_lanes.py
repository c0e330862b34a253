"""What is held and what is appended, of one producer, go one after the other."""

import asyncio

from weir.broker.publish.publish_order import PublishOrder, Waiting
from weir.model.errors import StreamBusyError


class Ways:
    """Remembers what was sent on and what was given up."""

    def __init__(self) -> None:
        self.lanes = PublishOrder()
        self.sent: dict[str, asyncio.Future[int]] = {}
        self.given_up: list[str] = []

    def enter(self, name: str, *, held: bool, before: "tuple[asyncio.Future[int], ...]" = ()) -> None:
        def send() -> "asyncio.Future[int]":
            self.sent[name] = asyncio.get_running_loop().create_future()
            return self.sent[name]

        self.lanes.enter("p", Waiting(held, send, lambda _: self.given_up.append(name)), before)

    async def stored(self, name: str) -> None:
        self.sent[name].set_result(0)
        await asyncio.sleep(0)

    async def failed(self, name: str) -> None:
        self.sent[name].set_exception(StreamBusyError("no"))
        await asyncio.sleep(0)


async def test_what_is_to_be_held_waits_for_what_is_being_appended() -> None:
    ways, appended = Ways(), asyncio.get_running_loop().create_future()
    ways.enter("held", held=True, before=(appended,))
    assert not ways.sent
    appended.set_result(0)
    await asyncio.sleep(0)
    assert list(ways.sent) == ["held"]


async def test_what_is_appended_waits_for_what_is_being_held_and_then_goes_together() -> None:
    ways = Ways()
    for name, held in (("a", True), ("b", False), ("c", False), ("d", True), ("e", True)):
        ways.enter(name, held=held)
    assert list(ways.sent) == ["a"]
    await ways.stored("a")
    assert list(ways.sent) == ["a", "b", "c"]
    await ways.stored("c")
    assert list(ways.sent) == ["a", "b", "c"]
    await ways.stored("b")
    assert list(ways.sent) == ["a", "b", "c", "d"]
    await ways.stored("d")
    await ways.stored("e")
    assert not ways.lanes.has("p")


async def test_what_is_appended_does_not_overtake_what_is_being_held() -> None:
    ways = Ways()
    for name, held in (("a", False), ("b", True), ("c", False), ("d", False)):
        ways.enter(name, held=held)
    assert list(ways.sent) == ["a"]
    await ways.stored("a")
    assert list(ways.sent) == ["a", "b"]
    await ways.stored("b")
    assert list(ways.sent) == ["a", "b", "c", "d"]


async def test_what_waits_behind_a_failure_is_given_up() -> None:
    ways = Ways()
    for name in ("a", "b", "c"):
        ways.enter(name, held=name == "a")
    await ways.failed("a")
    assert (list(ways.sent), ways.given_up) == (["a"], ["b", "c"])
    assert not ways.lanes.has("p")


async def test_other_producers_do_not_wait() -> None:
    ways = Ways()
    ways.enter("a", held=True)
    assert ways.lanes.has("p")
    assert not ways.lanes.has("q")
