"""FIFO groups against a model: whatever consumers, time and the broker do, each message group stays in order.

A real broker over fake bookies in simulated time; consumers speak raw gRPC, and do at random what clients may do.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from weir.gateway.rocketmq.settings import RocketmqSettings
from weir.model.ledger import Quorum
from weir.model.subscriptions import GroupSettings, with_settings
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.interfaces import Runtime
from weir.server.compose.composed import ComposedBroker
from weir.stream.settings import StreamSettings
from weir.testing.broker.fake_storage import compose_on_fakes, stage_composition
from weir.testing.rocketmq.client import GrpcLink
from weir.testing.storage.fakes import FakeBookiePool
from weir.testing.world.world import World, simulate
from weir.wire.rocketmq import rocketmq_pb2 as api
from weir.wire.rocketmq.proto import set_ms

NAME, GROUP = "orders", "billing"
DEAD = f"%DLQ%{GROUP}"
OK = api.Code.OK
MESSAGE_GROUPS = ("a", "b", "c")
MAX_ATTEMPTS = 4


@dataclass
class Held:
    """What a consumer has, until `due_ms` at least."""

    handle: str
    due_ms: int
    topic: str = NAME


@dataclass
class Model:
    """`sent`: bodies by message group, in order. `done`: acknowledged, or given to the dead letters. `unloaded`:
    out when the broker let go of the topic, which counts for nothing; `former`: their handles."""

    sent: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in MESSAGE_GROUPS})
    done: set[str] = field(default_factory=set)
    held: dict[str, Held] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    unloaded: set[str] = field(default_factory=set)
    former: dict[str, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def received(self, bodies: list[str], attempts: list[int], now_ms: int) -> None:
        """One answer: nothing of a message group overtakes what is before it, or comes while some of it is out."""
        for at, (body, attempt) in enumerate(zip(bodies, attempts, strict=True)):
            assert body not in self.done, f"{body} is done with"
            before_that = self.attempts.get(body, 0)
            assert before_that - (body in self.unloaded) < attempt <= MAX_ATTEMPTS, f"{body} is counted wrong"
            self.unloaded.discard(body)
            group = self.sent[body[0]]
            assert body in group, f"{body} was never sent"
            for other in group:
                held = self.held.get(other)
                assert held is None or held.due_ms <= now_ms, f"{body} came while {other} is out"
            for before in group[: group.index(body)]:
                dead = self.attempts.get(before, 0) >= MAX_ATTEMPTS
                assert dead or before in self.done or before in bodies[:at], f"{body} overtook {before}"


class Consumer:
    """A connection that receives, and settles what it or another one received."""

    def __init__(self, runtime: Runtime, port: int, name: str) -> None:
        self._runtime = runtime
        self._port = port
        self._name = name
        self.link: GrpcLink

    async def connect(self) -> None:
        self.link = await GrpcLink.open(self._runtime, "server", self._name, self._port)

    async def send(self, *bodies: str) -> list[int]:
        request = api.SendMessageRequest()
        for body in bodies:
            message = request.messages.add(topic=api.Resource(name=NAME), body=body.encode())
            message.system_properties.message_id = body
            message.system_properties.message_type = api.MessageType.FIFO
            message.system_properties.message_group = body[0]
        (answer,) = await self.link.call("SendMessage", request, 60.0)
        return [entry.status.code for entry in answer.entries]

    async def receive(
        self, count: int, invisible_ms: int, wait_ms: int, topic: str = NAME, group: str = GROUP
    ) -> list[Any]:
        request = api.ReceiveMessageRequest(group=api.Resource(name=group), batch_size=count)
        request.message_queue.topic.name = topic
        set_ms(request.invisible_duration, invisible_ms)
        set_ms(request.long_polling_timeout, wait_ms)
        answers = await self.link.call("ReceiveMessage", request, 60.0)
        return [one.message for one in answers if one.HasField("message")]

    async def ack(self, topic: str, *handles: str, group: str = GROUP) -> list[int]:
        request = api.AckMessageRequest(group=api.Resource(name=group), topic=api.Resource(name=topic))
        for handle in handles:
            request.entries.add(message_id="m", receipt_handle=handle)
        (answer,) = await self.link.call("AckMessage", request, 60.0)
        return [entry.status.code for entry in answer.entries]

    async def change(self, handle: str, invisible_ms: int) -> Any:
        request = api.ChangeInvisibleDurationRequest(
            group=api.Resource(name=GROUP), topic=api.Resource(name=NAME), receipt_handle=handle, message_id="m"
        )
        set_ms(request.invisible_duration, invisible_ms)
        (answer,) = await self.link.call("ChangeInvisibleDuration", request, 60.0)
        return answer

    async def bury(self, handle: str) -> int:
        request = api.ForwardMessageToDeadLetterQueueRequest(
            group=api.Resource(name=GROUP), topic=api.Resource(name=NAME), receipt_handle=handle, message_id="m"
        )
        (answer,) = await self.link.call("ForwardMessageToDeadLetterQueue", request, 60.0)
        return int(answer.status.code)


class Attack:
    """At random what clients may do, one thing after the other; `broker` may let go of the topic in between."""

    def __init__(self, runtime: Runtime, composed: ComposedBroker, port: int, rng: Random) -> None:
        self._clock = runtime.clock
        self._composed = composed
        self._rng = rng
        self.model = Model()
        self.consumers = [Consumer(runtime, port, f"c{number}") for number in range(2)]
        #: They receive while the others do something.
        self._others = [Consumer(runtime, port, f"w{number}") for number in range(2)]
        self._number = 0

    async def run(self, steps: int) -> None:
        for consumer in (*self.consumers, *self._others):
            await consumer.connect()
        kinds = {
            self.send: 4.0,
            self.receive: 8.0,
            self.wait_together: 2.0,
            self.ack: 6.0,
            self.ack_from_before: 1.0,
            self.change: 3.0,
            self.bury: 1.0,
            self.pass_time: 3.0,
            self.die: 1.0,
            self.unload: 1.0,
        }
        for _ in range(steps):
            (kind,) = self._rng.choices(list(kinds), list(kinds.values()))
            self.model.log.append(kind.__name__)
            await kind()

    @property
    def _consumer(self) -> Consumer:
        return self._rng.choice(self.consumers)

    def _some_held(self) -> list[str]:
        held = sorted(self.model.held)
        return self._rng.sample(held, min(len(held), self._rng.randint(1, 3)))

    async def send(self) -> None:
        bodies = []
        for _ in range(self._rng.randint(1, 6)):
            self._number += 1
            bodies.append(f"{self._rng.choice(MESSAGE_GROUPS)}{self._number}")
        assert set(await self._consumer.send(*bodies)) == {OK}
        for body in bodies:
            self.model.sent[body[0]].append(body)

    async def receive(self) -> None:
        invisible_ms = self._rng.choice((50, 500, 2_000, 30_000))
        asked_ms = self._clock.wall_ms()
        messages = await self._consumer.receive(
            self._rng.randint(1, 7), invisible_ms, self._rng.choice((0, 0, 600))
        )
        self._note(messages, asked_ms, invisible_ms)

    async def wait_together(self) -> None:
        """Both consumers wait, while messages come and others are settled."""
        asked_ms = self._clock.wall_ms()
        waiting = [asyncio.ensure_future(one.receive(self._rng.randint(1, 4), 2_000, 800)) for one in self._others]
        await self._clock.sleep(self._rng.choice((0.0, 0.01, 0.1)))
        for kind in self._rng.choices([self.send, self.ack, self.change], k=2):
            await kind()
        for messages in await asyncio.gather(*waiting):
            self._note(messages, asked_ms, 2_000)

    def _note(self, messages: list[Any], asked_ms: int, invisible_ms: int) -> None:
        now_ms = self._clock.wall_ms()
        bodies = [bytes(message.body).decode() for message in messages]
        attempts = [message.system_properties.delivery_attempt for message in messages]
        self.model.log.append(f"{bodies} {attempts} at {now_ms} for {invisible_ms}")
        self.model.received(bodies, attempts, now_ms)
        for body, message, attempt in zip(bodies, messages, attempts, strict=True):
            self.model.attempts[body] = attempt
            self.model.held[body] = Held(message.system_properties.receipt_handle, asked_ms + invisible_ms)

    async def ack(self) -> None:
        names = self._some_held()
        if not names:
            return
        codes = await self._consumer.ack(NAME, *(self.model.held[name].handle for name in names))
        self.model.log.append(f"{names} {codes}")
        for name, code in zip(names, codes, strict=True):
            held = self.model.held.pop(name)
            if code == OK:
                self.model.done.add(name)
            else:
                assert held.due_ms <= self._clock.wall_ms()

    async def ack_from_before(self) -> None:
        """What was received before the broker let go of the topic is its receiver's, unless another one has it."""
        for name, handle in sorted(self.model.former.items()):
            (code,) = await self._consumer.ack(NAME, handle)
            self.model.log.append(f"{name} {code}")
            if code == OK and name not in self.model.done:
                held = self.model.held.pop(name, None)
                assert held is None or held.due_ms <= self._clock.wall_ms(), f"{name} is somebody else's"
                self.model.done.add(name)
        self.model.former.clear()

    async def change(self) -> None:
        for name in self._some_held()[:1]:
            held = self.model.held[name]
            invisible_ms = self._rng.choice((0, 1, 300, 5_000))
            asked_ms = self._clock.wall_ms()
            answer = await self._consumer.change(held.handle, invisible_ms)
            self.model.log.append(f"{name} {invisible_ms} {answer.status.code}")
            if answer.status.code == OK:
                self.model.held[name] = Held(answer.receipt_handle, asked_ms + invisible_ms)
            else:
                assert held.due_ms <= self._clock.wall_ms()
                del self.model.held[name]

    async def bury(self) -> None:
        for name in self._some_held()[:1]:
            held = self.model.held.pop(name)
            code = await self._consumer.bury(held.handle)
            self.model.log.append(f"{name} {code}")
            if code == OK:
                self.model.done.add(name)
            else:
                assert held.due_ms <= self._clock.wall_ms()

    async def pass_time(self) -> None:
        await self._clock.sleep(self._rng.choice((0.01, 0.3, 1.0, 3.0)))

    async def die(self) -> None:
        """A consumer hangs up while it waits: what was on its way to it is visible after its time."""
        consumer, asked_ms = self._consumer, self._clock.wall_ms()
        receiving = asyncio.ensure_future(consumer.receive(3, 200, 5_000))
        await self._clock.sleep(self._rng.choice((0.0, 0.001, 0.02)))
        if receiving.done() and receiving.exception() is None:
            self._note(receiving.result(), asked_ms, 200)
            return
        consumer.link.close()
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        await self._clock.sleep(0.5)
        await consumer.connect()

    async def unload(self) -> None:
        """What was received before may come again at once, in order."""
        await self._composed.broker.unload(TopicName.parse(NAME))
        self.model.unloaded.update(self.model.held)
        self.model.former |= {name: held.handle for name, held in self.model.held.items()}
        self.model.held.clear()

    async def drain(self) -> None:
        """Everything is received and acknowledged in the end, or is a dead letter."""
        self.model.held.clear()
        await self._clock.sleep(40)
        consumer = self.consumers[0]
        self.model.log.append("drain")
        while messages := await consumer.receive(5, 60_000, 1_000):
            self._note(messages, self._clock.wall_ms(), 60_000)
            handles = [message.system_properties.receipt_handle for message in messages]
            assert set(await consumer.ack(NAME, *handles)) == {OK}
            for message in messages:
                self.model.done.add(bytes(message.body).decode())
            self.model.held.clear()
        dead: list[str] = []
        while messages := await consumer.receive(32, 60_000, 1_000, DEAD, "undertaker"):
            handles = [message.system_properties.receipt_handle for message in messages]
            assert set(await consumer.ack(DEAD, *handles, group="undertaker")) == {OK}
            dead += [bytes(message.body).decode() for message in messages]
        assert len(dead) == len(set(dead)), "a dead letter exists once"
        missing = {body for bodies in self.model.sent.values() for body in bodies} - self.model.done - set(dead)
        assert not missing, f"never came: {missing}"


def staged(talk: Callable[[Runtime, ComposedBroker, int], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    """A broker whose group `billing` is FIFO, and the port of its RocketMQ gateway."""

    async def main(runtime: Runtime) -> None:
        how = stage_composition(None, streams=StreamSettings(quorum=Quorum(1, 1, 1)), producer_ids=100)
        async with AsyncExitStack() as stack:
            composed = await compose_on_fakes(runtime, how, stack, bookies=1, pool=FakeBookiePool())
            wanted = GroupSettings(fifo=True, max_attempts=MAX_ATTEMPTS)
            await composed.registry.change_properties(
                NamespaceName("public", "default"), lambda said: with_settings(said, GROUP, wanted)
            )
            server = await composed.serve_rocketmq(RocketmqSettings(host="server"))
            await talk(runtime, composed, server.port)

    async def scenario(world: World) -> None:
        await world.node("server").start(main)

    simulate(seed, scenario)


@pytest.mark.parametrize("seed", range(8))
def test_each_message_group_stays_in_order_and_loses_nothing(seed: int) -> None:
    async def talk(runtime: Runtime, composed: ComposedBroker, port: int) -> None:
        attack = Attack(runtime, composed, port, Random(seed))
        try:
            await attack.run(120)
            await attack.drain()
        except AssertionError:
            print("\n".join(attack.model.log[-40:]))
            raise

    staged(talk, seed)
