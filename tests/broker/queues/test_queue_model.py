"""A queue under any sequence of events against a simple model: lists of what is ready, and who has what."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from weir.broker.api.queues import QueueMessages
from weir.model.errors import ConsumerClosedError
from weir.model.messages import Message
from weir.testing.kinds import rounds
from weir.wire.formats.messages import encode_message

LEVELS = 3


class Model:
    """What a queue promises, message by message."""

    def __init__(self, stage: Any, queue: Any, seed: int, levels: int) -> None:
        self.stage, self.queue = stage, queue
        self.dice = Random(seed)
        self.levels = levels
        self.end = 0
        self.level: dict[int, int] = {}
        self.ready: dict[int, None] = {}
        self.times: dict[int, int] = {}
        self.held: dict[Any, dict[int, None]] = {}
        self.getters: list[Any] = []
        self.retired: list[Any] = []

    # --- what is expected -------------------------------------------------------------------------------

    def next_ready(self, count: int) -> list[int]:
        return sorted(self.ready, key=lambda offset: (-self.level[offset], offset))[:count]

    def taken(self, consumer: Any, found: list[tuple[int, str, int]]) -> None:
        """It was delivered: what was next, in order, each counted on its own."""
        expected = [(offset, f"m{offset}", self.times.get(offset, 0)) for offset in self.next_ready(len(found))]
        assert found == expected
        for offset, _, _ in found:
            del self.ready[offset]
            self.held[consumer][offset] = None

    def back(self, consumer: Any, offsets: list[int]) -> None:
        for offset in offsets:
            del self.held[consumer][offset]
            self.ready[offset] = None
            self.times[offset] = self.times.get(offset, 0) + 1

    async def check(self) -> None:
        served = len(self.held) - len(self.getters) - len(self.retired)
        unacked = sum(map(len, self.held.values()))
        assert await self.stage.counts(self.queue) == (len(self.ready), unacked, served)

    # --- what happens -----------------------------------------------------------------------------------

    async def publish(self) -> None:
        count = self.dice.randrange(1, 6)
        encoded = []
        for offset in range(self.end, self.end + count):
            said = self.dice.randrange(-2, LEVELS + 3)
            self.level[offset] = max(0, min(said, self.levels))
            headers = [("weir-priority", b"%d" % said)] if said >= 0 else []
            encoded.append(encode_message(Message(None, f"m{offset}".encode(), headers)))
            self.ready[offset] = None
        self.end += count
        await self.queue.publish(QueueMessages(encoded))

    async def join(self) -> None:
        self.held[await self.stage.consumer(self.queue)] = {}

    async def open_getter(self) -> None:
        getter = await self.queue.getter("ann")
        self.held[getter] = {}
        self.getters.append(getter)

    async def receive(self, consumer: Any) -> None:
        credit = self.dice.randrange(1, 9)
        task = asyncio.ensure_future(consumer.next(credit))
        await asyncio.sleep(0)
        if task.done() or self.ready:
            found = self.stage.split(await task)
            assert len(found) == min(credit, len(self.ready))
            self.taken(consumer, found)
            return
        if self.dice.random() < 0.5:  # somebody publishes while it waits, and it gives up then
            await self.publish()
        task.cancel()
        with suppress(asyncio.CancelledError):
            self.taken(consumer, self.stage.split(await task))

    async def take(self, getter: Any) -> None:
        found = await getter.take()
        assert (found is None) == (not self.ready)
        if found is not None:
            self.taken(getter, self.stage.split([found]))

    async def close(self, consumer: Any) -> None:
        self.back(consumer, list(self.held[consumer]))
        del self.held[consumer]
        for others in (self.getters, self.retired):
            if consumer in others:
                others.remove(consumer)
        await consumer.close()

    def retire(self, consumer: Any) -> None:
        consumer.retire()
        self.retired.append(consumer)

    def some_of(self, consumer: Any) -> tuple[list[int], list[tuple[int, int]]]:
        offsets = [offset for offset in self.held[consumer] if self.dice.random() < 0.6]
        ranges: list[tuple[int, int]] = []
        for offset in offsets:
            if ranges and ranges[-1][1] == offset and self.dice.random() < 0.7:
                ranges[-1] = (ranges[-1][0], offset + 1)
            else:
                ranges.append((offset, offset + 1))
        return offsets, ranges

    async def step(self) -> None:
        dice = self.dice
        everyone = list(self.held)
        served = [one for one in everyone if one not in self.getters and one not in self.retired]
        roll = dice.choice("ppprrrraaaqqqxgtttjckz")
        if roll == "p":
            await self.publish()
        elif roll == "j" or (roll == "r" and not served):
            await self.join()
        elif roll == "g" or (roll == "t" and not self.getters):
            await self.open_getter()
        elif roll == "r":
            await self.receive(dice.choice(served))
        elif roll == "t":
            await self.take(dice.choice(self.getters))
        elif roll == "z" and dice.random() < 0.3:
            assert await self.queue.purge() == len(self.ready)
            self.ready.clear()
        elif everyone:
            await self.answer(roll, dice.choice(everyone))

    async def answer(self, roll: str, consumer: Any) -> None:
        offsets, ranges = self.some_of(consumer)
        match roll:
            case "a" | "x":
                for offset in offsets:
                    del self.held[consumer][offset]
                (consumer.ack if roll == "a" else consumer.reject)(ranges)
            case "q":
                self.back(consumer, offsets)
                consumer.requeue(ranges)
            case "c":
                await self.close(consumer)
            case "k" if consumer not in self.getters and consumer not in self.retired:
                self.retire(consumer)
                with pytest.raises(ConsumerClosedError):
                    await consumer.next(1)

    async def drain(self) -> None:
        """Everything that is left comes in the end, in order."""
        for consumer in list(self.held):
            await self.close(consumer)
        await self.check()
        await self.join()
        (last,) = self.held
        while self.ready:
            self.taken(last, self.stage.split(await last.next(7)))
        last.ack([(0, self.end)])
        self.held[last].clear()
        await self.check()


@pytest.mark.parametrize("levels", [0, LEVELS])
@pytest.mark.parametrize("durable", [False, True], ids=["memory", "durable"])
@settings(max_examples=rounds(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.integers(0, 120), seed=st.integers(0, 1 << 30))
@example(steps=300, seed=1)
@example(steps=300, seed=2)
def test_any_sequence_of_events_is_as_a_list_of_messages_would_have_it(
    run: Callable, durable: bool, levels: int, steps: int, seed: int
) -> None:
    async def scenario(stage: Any) -> None:
        arguments = {"x-max-priority": levels} if levels else {}
        queue = await stage.declare(durable=durable, arguments=arguments)
        model = Model(stage, queue, seed, levels)
        for _ in range(steps):
            await model.step()
            await model.check()
        await model.drain()

    run(scenario, seed)
