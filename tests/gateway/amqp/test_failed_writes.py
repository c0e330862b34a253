"""A publish that fails or is fenced is never confirmed, and no later publish of its channel overtakes it.

A real broker over a fake bookie whose answers are held back, failed or fenced.
"""

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from weir.gateway.amqp.settings import AmqpSettings
from weir.model.errors import BookieError, BookieUnavailableError, LedgerFencedError
from weir.model.ledger import Quorum
from weir.runtime.interfaces import Connection, Runtime
from weir.stream.settings import StreamSettings
from weir.testing.broker.fake_storage import compose_on_fakes, stage_composition
from weir.testing.storage.fakes import FakeBookie, FakeBookiePool
from weir.testing.world.world import World, simulate
from weir.wire.amqp.command_reader import Command, CommandReader
from weir.wire.amqp.content import publish
from weir.wire.amqp.frames import PROTOCOL_HEADER, Role
from weir.wire.amqp.methods import Method, basic, confirm, connection, encode_method, exchange, queue, tx
from weir.wire.amqp.methods import channel as channels
from weir.wire.amqp.properties import Properties, encode_properties
from weir.wire.amqp.tables import Table

FAILURES = {"failed": BookieUnavailableError("the disk is full"), "fenced": LedgerFencedError("taken over")}
FRAME_MAX = 131_072
PERSISTENT = encode_properties(Properties(delivery_mode=2))

with_each = pytest.mark.parametrize("failure", list(FAILURES.values()), ids=list(FAILURES))


class Client:
    """One connection with channel 1, in simulated time. `confirmed` and `refused` are numbers of publishes."""

    def __init__(self, transport: Connection, runtime: Runtime) -> None:
        self._transport = transport
        self._clock = runtime.clock
        self._reader = CommandReader(Role.CLIENT, frame_max=1 << 24)
        self._commands: list[Command] = []
        self.confirmed: list[int] = []
        self.refused: list[int] = []
        self.published = 0

    async def open(self) -> None:
        self._transport.write([PROTOCOL_HEADER])
        await self.expect(connection.Start)
        self.say(connection.StartOk(Table.of({}), "PLAIN", b"\0guest\0guest"), number=0)
        await self.expect(connection.Tune)
        self.say(connection.TuneOk(2047, FRAME_MAX, 0), connection.Open("/"), number=0)
        await self.expect(connection.OpenOk)
        await self.call(channels.Open(), channels.OpenOk)

    def say(self, *methods: Method, number: int = 1) -> None:
        self._transport.write([encode_method(number, method) for method in methods])

    async def read(self) -> Command:
        while not self._commands:
            data = await self._transport.receive()
            assert data, "the broker closed the connection"
            self._commands += self._reader.feed(data)
        command = self._commands.pop(0)
        match command.method:
            case basic.Ack(tag, multiple):
                self._note(self.confirmed, tag, multiple)
            case basic.Nack(tag, multiple):
                self._note(self.refused, tag, multiple)
        return command

    def _note(self, numbers: list[int], tag: int, multiple: bool) -> None:
        known = {*self.confirmed, *self.refused}
        first = min({*range(1, tag + 1)} - known) if multiple else tag
        numbers += [number for number in range(first, tag + 1) if number not in known]

    async def expect(self, kind: type[Method]) -> Command:
        """The next command of this kind; confirms before it are noted."""
        while True:
            command = await self.read()
            if isinstance(command.method, kind):
                return command
            assert isinstance(command.method, basic.Ack | basic.Nack), command

    async def call(self, method: Method, answer: type[Method]) -> Command:
        self.say(method)
        return await self.expect(answer)

    def publish(self, *bodies: str, name: str = "work", to: str = "", properties: bytes = PERSISTENT) -> None:
        for body in bodies:
            self.published += 1
            method = basic.Publish(exchange=to, routing_key=name)
            self._transport.write(publish(1, method, properties, body.encode(), FRAME_MAX))

    async def answered(self) -> None:
        """Wait until the broker has confirmed or refused all publishes."""
        while len(self.confirmed) + len(self.refused) < self.published:
            await self.read()

    async def publish_until_stored(self, body: str) -> None:
        """As an application does: again, as long as it is nacked."""
        for _ in range(60):
            self.publish(body)
            await self.answered()
            if self.published in self.confirmed:
                return
            await self._clock.sleep(0.5)
        raise AssertionError(f"{body} is refused for 30 s")

    async def stored(self, name: str = "work") -> list[str]:
        found: list[str] = []
        while True:
            self.say(basic.Get(name, True))
            while not isinstance((command := await self.read()).method, basic.GetOk | basic.GetEmpty):
                pass
            if isinstance(command.method, basic.GetEmpty):
                return found
            assert command.body is not None
            found.append(bytes(command.body).decode())


def conversation(
    talk: Callable[[Client, FakeBookie, Runtime], Coroutine[Any, Any, None]],
    *,
    kind: str = "classic",
    transaction: bool = False,
) -> None:
    """A queue `work` with one stored message, and the client that published it."""

    async def main(runtime: Runtime) -> None:
        how = stage_composition(None, streams=StreamSettings(quorum=Quorum(1, 1, 1)), producer_ids=100)
        async with AsyncExitStack() as stack:
            bookies = FakeBookiePool()
            composed = await compose_on_fakes(runtime, how, stack, bookies=1, pool=bookies)
            server = await composed.serve_amqp(AmqpSettings(host="server"))
            client = Client(await runtime.net.connect("server", server.port), runtime)
            await client.open()
            arguments = Table.of({"x-queue-type": kind})
            await client.call(queue.Declare(queue="work", durable=True, arguments=arguments), queue.DeclareOk)
            await client.call(
                *((tx.Select(), tx.SelectOk) if transaction else (confirm.Select(), confirm.SelectOk))
            )
            (bookie,) = bookies.bookies.values()
            if not transaction:
                client.publish("m0")
                await client.answered()
                assert client.confirmed == [1]
            try:
                await talk(client, bookie, runtime)
            finally:  # else the broker would not close
                bookie.failure = None
                bookie.release()

    async def scenario(world: World) -> None:
        await world.node("server").start(main)

    simulate(1, scenario)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@with_each
def test_a_publish_that_fails_is_refused_and_so_are_those_behind_it(failure: BookieError, kind: str) -> None:
    async def talk(client: Client, bookie: FakeBookie, runtime: Runtime) -> None:
        bookie.hold()
        for body in ("m1", "m2", "m3"):  # three entries
            client.publish(body)
            await runtime.clock.sleep(0.5)
        bookie.failure = failure
        bookie.release(failure)
        await client.answered()
        assert client.confirmed == [1]
        assert client.refused == [2, 3, 4]
        bookie.failure = None
        for body in ("m1", "m2", "m3"):
            await client.publish_until_stored(body)
        stored = await client.stored()
        assert stored[0] == "m0"
        assert stored[-3:] == ["m1", "m2", "m3"]

    conversation(talk, kind=kind)


@with_each
def test_publishes_that_wait_for_the_end_of_a_failure_are_stored_in_their_order(failure: BookieError) -> None:
    async def talk(client: Client, bookie: FakeBookie, runtime: Runtime) -> None:
        bookie.hold()
        client.publish("m1")
        await runtime.clock.sleep(0.5)
        bookie.release(failure)
        for number in range(2, 12):  # while the broker looks for what the failure left behind, and after that
            client.publish(f"m{number}")
            await runtime.clock.sleep(0.01)
        await client.answered()
        assert 2 in client.refused
        numbers = [int(body[1:]) for body in await client.stored()]
        assert numbers == sorted(set(numbers))
        assert {number - 1 for number in client.confirmed} <= set(numbers)

    conversation(talk)


def test_publishes_are_refused_as_long_as_nothing_can_be_stored() -> None:
    async def talk(client: Client, bookie: FakeBookie, runtime: Runtime) -> None:
        bookie.failure = FAILURES["failed"]
        for _ in range(4):
            client.publish("lost")
            await client.answered()
            await runtime.clock.sleep(1)
        assert (client.confirmed, client.refused) == ([1], [2, 3, 4, 5])
        bookie.failure = None
        await client.publish_until_stored("m1")
        assert await client.stored() == ["m0", "m1"]

    conversation(talk)


def test_a_publish_that_times_out_is_refused_and_later_ones_follow_in_their_order() -> None:
    async def talk(client: Client, bookie: FakeBookie, runtime: Runtime) -> None:
        bookie.hold()
        client.publish("m1")
        await runtime.clock.sleep(0.5)
        client.publish("m2")
        await client.answered()
        assert (client.confirmed, client.refused) == ([1], [2, 3])
        bookie.release()  # the bookie answers after all
        for body in ("m1", "m2"):
            await client.publish_until_stored(body)
        assert (await client.stored())[-2:] == ["m1", "m2"]

    conversation(talk)


def test_a_publish_is_not_confirmed_while_it_is_not_stored_even_if_the_client_closes() -> None:
    async def talk(client: Client, bookie: FakeBookie, runtime: Runtime) -> None:
        bookie.hold()
        client.publish("m1")
        await runtime.clock.sleep(0.5)
        client.say(connection.Close(200, "bye", 0, 0), number=0)
        await client.expect(connection.CloseOk)
        assert (client.confirmed, client.refused) == ([1], [])

    conversation(talk)


@with_each
def test_a_channel_closes_after_its_publishes_are_answered(failure: BookieError) -> None:
    async def talk(client: Client, bookie: FakeBookie, runtime: Runtime) -> None:
        bookie.hold()
        client.publish("m1")
        client.say(channels.Close(200, "bye", 0, 0))
        await runtime.clock.sleep(5)
        bookie.failure = failure
        bookie.release(failure)
        await client.expect(channels.CloseOk)
        assert (client.confirmed, client.refused) == ([1], [2])

    conversation(talk)


def test_a_publish_to_two_queues_is_refused_if_one_of_them_does_not_store_it() -> None:
    async def talk(client: Client, bookie: FakeBookie, runtime: Runtime) -> None:
        former = set(bookie.ledgers)
        await client.call(queue.Declare(queue="other", durable=True), queue.DeclareOk)
        await client.call(exchange.Declare(exchange="both", type="fanout", durable=True), exchange.DeclareOk)
        for name in ("work", "other"):
            await client.call(queue.Bind(queue=name, exchange="both"), queue.BindOk)
        client.publish("m0", name="other")
        await client.answered()
        for ledger in set(bookie.ledgers) - former:
            bookie.ledgers[ledger].fenced = True
        client.publish("m1", to="both", name="")
        await client.answered()
        assert (client.confirmed, client.refused) == ([1, 2], [3])
        assert await client.stored() == ["m0", "m1"]

    conversation(talk)


@with_each
def test_a_commit_whose_publish_fails_is_no_commit(failure: BookieError) -> None:
    async def talk(client: Client, bookie: FakeBookie, runtime: Runtime) -> None:
        client.publish("m1")
        await client.call(tx.Commit(), tx.CommitOk)
        bookie.failure = failure
        client.publish("m2")
        closed = (await client.call(tx.Commit(), channels.Close)).method
        assert isinstance(closed, channels.Close)
        assert (closed.reply_code, closed.reply_text) == (406, "PRECONDITION_FAILED - partial tx completion")

    conversation(talk, transaction=True)
