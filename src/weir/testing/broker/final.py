"""After healing: everything stored is read, and every subscription is emptied, in bounded virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from weir.client.access import ConsumerSettings
from weir.client.pulsar.client import PulsarClient
from weir.client.pulsar.connection import BrokerConnection
from weir.client.pulsar.consumer import Consumer, Inbox, PartConsumer, Subscribing
from weir.client.pulsar.messages import Incoming
from weir.model.errors import ConnectionLostError, InvariantError, WeirError
from weir.runtime.interfaces import Runtime
from weir.testing.broker.consumers import Handle
from weir.testing.broker.history import MessagePosition, place_of
from weir.testing.broker.workload import CLIENT, BrokerShared, full_name
from weir.testing.log_history import LogOpKind
from weir.testing.operations import FINAL
from weir.testing.storage.history import payload_id
from weir.wire.pulsar.ids import EARLIEST

#: Dead connections are noticed, leases run out, appends under way end; then nothing changes any more.
_SETTLE_S = 8.0
_PATIENCE_S = 60.0
_RELEASE_S = 2.0
_READ_S = 10.0
_QUIET_S = 1.5
_PAUSE_S = 0.5


class FinalReader:
    """Runs on a node of its own, over the same protocol as everyone else."""

    def __init__(self, runtime: Runtime, shared: BrokerShared, subscriptions: dict[str, tuple[str, ...]]) -> None:
        self._runtime = runtime
        self._clock = runtime.clock
        self._shared = shared
        self._subscriptions = subscriptions

    async def run(self) -> None:
        due_in_s = self._shared.last_due_s + self._shared.broker_plan.skew_s - self._shared.now
        await self._clock.sleep(max(0.0, due_in_s) + _SETTLE_S)
        for topic in self._subscriptions:
            await self._insist(topic, self._touch)
        await self._clock.sleep(_RELEASE_S)  # nobody may have asked for the topic since its broker died
        for topic in self._subscriptions:
            await self._insist(topic, self._read_all)
        for topic, names in self._subscriptions.items():
            for subscription in names:
                await self._insist(topic, partial(self._drain, subscription))

    async def _insist(self, topic: str, work: Callable[[BrokerConnection, str], Awaitable[None]]) -> None:
        """Try until it works; with everything healed it must, soon."""
        until = self._clock.monotonic() + _PATIENCE_S
        while True:
            try:
                async with PulsarClient(self._runtime, self._shared.some_url(self._runtime.rng), CLIENT) as client:
                    await work(await client._owner(full_name(topic)), topic)
                return
            except InvariantError:
                raise
            except WeirError as failure:
                if self._clock.monotonic() > until:
                    self._shared.story.begin(FINAL, LogOpKind.MISSING, topic=topic).failed(failure)
                    return
            await self._clock.sleep(_PAUSE_S)

    async def _reader(self, connection: BrokerConnection, topic: str, inbox: Inbox) -> PartConsumer:
        asked = Subscribing("final-reader", earliest=True, durable=False, start=EARLIEST)
        settings = ConsumerSettings(queue=500)
        part = PartConsumer(connection, full_name(topic), asked, settings, inbox=inbox, part=0)
        await part.open()
        return part

    async def _touch(self, connection: BrokerConnection, topic: str) -> None:
        """Have the topic loaded, so that what is held is released."""
        await (await self._reader(connection, topic, Inbox())).close()

    async def _read_all(self, connection: BrokerConnection, topic: str) -> None:
        inbox = Inbox()
        part = await self._reader(connection, topic, inbox)
        last = place_of(await part.last_id())
        found = await self._up_to(last, Consumer(inbox, [part])) if last.entry >= 0 else []
        await part.close()
        for message in found:
            self._shared.story.begin(
                FINAL,
                LogOpKind.CONTENT,
                topic=topic,
                place=place_of(message.id),
                payload=payload_id(message.payload),
                batch=message.batch_size,
                key=None if message.key is None else message.key.decode(),
            ).ok()
        self._shared.story.begin(FINAL, LogOpKind.READ_ALL, topic=topic, place=last).ok()

    async def _up_to(self, last: MessagePosition, consumer: Consumer) -> list[Incoming]:
        found: list[Incoming] = []
        try:
            async with asyncio.timeout(_READ_S):
                while not found or place_of(found[-1].id) != last:
                    message = await consumer.receive()
                    if message is not None:
                        found.append(message)
        except TimeoutError:
            raise ConnectionLostError(f"the reader never came to {last}, which is said to be the last") from None
        return found

    async def _drain(self, subscription: str, connection: BrokerConnection, topic: str) -> None:
        handle = Handle(self._shared.next_handle(FINAL), topic, subscription, self._shared)
        await handle.open(connection, queue=100, label=FINAL)
        while (message := await handle.receive(_QUIET_S)) is not None:
            messages = [message]
            while handle.waiting and (more := await handle.receive(_QUIET_S)) is not None:
                messages.append(more)
            await handle.ack(messages)
        self._shared.story.begin(FINAL, LogOpKind.DRAINED, topic=topic, subscription=subscription).ok()
        if handle.consumer is not None:
            await handle.consumer.close()
