"""A topic that is let go of and asked for again at the same moment."""

import asyncio
from collections.abc import Callable

from weir.broker.api.broker import Owner
from weir.broker.broker import Broker
from weir.broker.standalone import PlainRegistry
from weir.model.topics import TopicName

NAME = TopicName.parse("t")


class Deed:
    """A claim that can be lost."""

    held = True
    epoch = 0


class Deeds:
    """Ownership that knows only what is held now."""

    def __init__(self) -> None:
        self.deed: Deed | None = None

    async def own(self, topic: TopicName) -> Deed:
        if self.deed is None or not self.deed.held:
            self.deed = Deed()
        return self.deed

    async def owner(self, topic: TopicName) -> Owner:
        return Owner(True)


def test_a_topic_loaded_while_it_is_unloaded_keeps_its_claim(run: Callable) -> None:
    async def scenario(bench) -> None:
        deeds = Deeds()
        broker = Broker(await bench.context(), PlainRegistry(), deeds)
        first = await broker.load(NAME)
        unloading = asyncio.ensure_future(broker.unload(NAME))
        await asyncio.sleep(0)
        second = await broker.load(NAME)
        await unloading
        assert second is not first
        assert second.alive
        assert deeds.deed is not None
        await broker.close()

    run(scenario)


def test_a_topic_whose_claim_is_lost_serves_nobody_who_comes_later(run: Callable) -> None:
    async def scenario(bench) -> None:
        deeds = Deeds()
        broker = Broker(await bench.context(), PlainRegistry(), deeds)
        first = await broker.load(NAME)
        deeds.deed.held = False
        second = await broker.load(NAME)
        assert not first.alive
        assert second is not first
        await broker.close()

    run(scenario)
