"""Replays in the metadata: what is fixed stays fixed, counts only grow, old ones make room."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from weir.broker.api.definitions import ReplayStep
from weir.broker.metadata import definitions as module
from weir.broker.metadata.definitions import Replays
from weir.meta.local import MemoryCore, MemoryMeta
from weir.model.definitions import Replay, ReplayState
from weir.model.errors import NotAllowedError, ReplayNotFoundError, TooManyError
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.testing.world.world import World, simulate

ORDERS = TopicName.parse("orders")
ONE = Replay("r1", ORDERS, "billing", ORDERS, where="amount > 1", role="ann")


def run(scenario: Callable[[Replays], Awaitable[None]]) -> None:
    async def main(world: World) -> None:
        async def on_node(runtime: Runtime) -> None:
            await scenario(Replays(MemoryMeta(MemoryCore(runtime.clock), runtime), runtime))

        await world.node("broker").start(on_node)

    simulate(1, main)


def test_a_replay_is_kept_with_who_what_and_how_many_until_it_is_forgotten() -> None:
    async def story(replays: Replays) -> None:
        await replays.begin(ONE)
        await replays.begin(ONE)
        with pytest.raises(NotAllowedError):
            await replays.begin(replace(ONE, where="other"))
        step = ReplayStep(ReplayState.DELIVERING, (5, 1), None, (9, 0))
        assert (await replays.report(ORDERS, "r1", step)).delivered == (0, 0)
        await replays.report(ORDERS, "r1", ReplayStep(delivered=(3, 1)))
        found = await replays.report(ORDERS, "r1", ReplayStep(delivered=(2, 1)))
        assert (found.role, found.selected, found.delivered) == ("ann", (5, 1), (3, 1))
        for wrong in (ReplayStep(selected=(6, 1)), ReplayStep(producer=(8, 0)), ReplayStep(ReplayState.SELECTING)):
            with pytest.raises(NotAllowedError):
                await replays.report(ORDERS, "r1", wrong)
        await replays.report(ORDERS, "r1", ReplayStep(ReplayState.DONE, delivered=(5, 1)))
        with pytest.raises(NotAllowedError):
            await replays.report(ORDERS, "r1", ReplayStep(ReplayState.CANCELLED))
        assert await replays.list(ORDERS) == await replays.list() == [await replays.get(ORDERS, "r1")]
        await replays.forget(ORDERS, "r1")
        with pytest.raises(ReplayNotFoundError):
            await replays.get(ORDERS, "r1")

    run(story)


def test_of_those_that_have_ended_the_oldest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_REPLAYS", 2)

    async def story(replays: Replays) -> None:
        for name in ("r1", "r2"):
            await replays.begin(replace(ONE, id=name))
        with pytest.raises(TooManyError):
            await replays.begin(replace(ONE, id="r3"))
        await replays.report(ORDERS, "r2", ReplayStep(ReplayState.CANCELLED))
        late = await replays.report(ORDERS, "r2", ReplayStep(delivered=(3, 1)))  # by who learns it from the answer
        assert (late.state, late.delivered) == (ReplayState.CANCELLED, (3, 1))
        await replays.begin(replace(ONE, id="r3"))
        assert sorted(one.id for one in await replays.list()) == ["r1", "r3"]

    run(story)
