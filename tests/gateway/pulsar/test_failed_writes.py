"""A send that fails, is fenced or times out gets no receipt, and no later send of its producer overtakes it.

A real broker over a fake bookie whose answers are held back, failed or fenced.
"""

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.gateway.pulsar.conftest import Peer

from weir.gateway.pulsar import PulsarSettings
from weir.model.errors import (
    BookieError,
    BookieUnavailableError,
    LedgerFencedError,
    QuotaExceededError,
    StreamFencedError,
    WeirError,
)
from weir.model.ledger import Quorum
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.stream.settings import StreamSettings
from weir.testing.broker.fake_storage import compose_on_fakes, stage_composition
from weir.testing.storage.fakes import FakeBookie, FakeBookiePool
from weir.testing.world.world import World, simulate
from weir.wire.formats.table import messages_of
from weir.wire.pulsar import pulsar_api_pb2 as api

TOPIC = "persistent://public/default/orders"
FAILURES = {"failed": BookieUnavailableError("the disk is full"), "fenced": LedgerFencedError("taken over")}

with_each = pytest.mark.parametrize("failure", list(FAILURES.values()), ids=list(FAILURES))


class Client:
    """One connection with producer 1, as clients of Pulsar work: what has no receipt is sent again, in order, once
    the broker has closed the producer. `confirmed`: sequence numbers, in the order of their receipts."""

    def __init__(self, peer: Peer, broker: Any, runtime: Runtime) -> None:
        self.peer = peer
        self._broker = broker
        self._clock = runtime.clock
        self.confirmed: list[int] = []
        #: Sequence numbers of what was sent and has no receipt.
        self.pending: list[int] = []

    async def open(self) -> None:
        """As often as the broker says that it is not ready."""
        for _ in range(60):
            self.peer.say(api.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, producer_name="p"))
            while True:
                frame = await self.peer.frame()
                assert frame is not None
                if isinstance(frame.command, api.CommandProducerSuccess):
                    return
                if isinstance(frame.command, api.CommandError):
                    assert frame.command.error == api.ServerError.ServiceNotReady, frame.command
                    break
                assert isinstance(frame.command, api.CommandCloseProducer), frame.command
            await self._clock.sleep(0.5)
        raise AssertionError("the broker was not ready for 30 s")

    def send(self, *numbers: int) -> None:
        for number in numbers:
            self.pending.append(number)
            self.peer.send(1, number, b"m%d" % number)

    async def heard(self) -> bool:
        """Whether the next word is a receipt; else the producer is closed."""
        frame = await self.peer.frame()
        assert frame is not None
        if isinstance(frame.command, api.CommandSendReceipt):
            number = frame.command.sequence_id
            assert number == self.pending[0], "a receipt past a send without one is taken for that one's"
            self.confirmed.append(self.pending.pop(0))
            return True
        assert isinstance(frame.command, api.CommandCloseProducer), frame.command
        return False

    async def reconnect(self) -> None:
        """Make the producer anew, and send again what has no receipt."""
        await self.open()
        again, self.pending = self.pending, []
        self.send(*again)

    async def settle(self) -> None:
        """Until all is confirmed."""
        while self.pending:
            if not await self.heard():
                await self.reconnect()

    async def stored(self) -> list[str]:
        topic = await self._broker.load(TopicName.parse(TOPIC), create=False)
        found: list[str] = []
        at = topic.start_offset
        while at < topic.end_offset:
            for batch in await topic.read(at, 1 << 20):
                found += [bytes(message.value or b"").decode() for message in messages_of(batch)]
                at = batch.end_offset
        return found


def conversation(talk: Callable[[Client, FakeBookie, Runtime], Coroutine[Any, Any, None]]) -> None:
    """A topic with one stored message, and the client that sent it."""

    async def main(runtime: Runtime) -> None:
        how = stage_composition(None, streams=StreamSettings(quorum=Quorum(1, 1, 1)), producer_ids=100)
        async with AsyncExitStack() as stack:
            bookies = FakeBookiePool()
            composed = await compose_on_fakes(runtime, how, stack, bookies=1, pool=bookies)
            server = await composed.serve_pulsar(PulsarSettings(host="server", port=6650))
            peer = Peer(await runtime.net.connect("server", server.port))
            await peer.greet()
            client = Client(peer, composed.broker, runtime)
            await client.open()
            client.send(0)
            await client.settle()
            (bookie,) = bookies.bookies.values()
            try:
                await talk(client, bookie, runtime)
            finally:  # else the broker would not close
                bookie.failure = None
                bookie.release()

    async def scenario(world: World) -> None:
        await world.node("server").start(main)

    simulate(1, scenario)


@with_each
def test_a_send_that_fails_gets_no_receipt_nor_do_those_behind_it(failure: BookieError) -> None:
    async def talk(client: Client, bookie: FakeBookie, runtime: Runtime) -> None:
        bookie.hold()
        for number in (1, 2, 3):  # three entries
            client.send(number)
            await runtime.clock.sleep(0.5)
        bookie.failure = failure
        bookie.release(failure)
        assert not await client.heard()
        assert client.confirmed == [0]
        bookie.failure = None
        await client.reconnect()
        await client.settle()
        stored = await client.stored()
        assert stored[0] == "m0"
        assert stored[-3:] == ["m1", "m2", "m3"]

    conversation(talk)


@with_each
def test_sends_behind_a_failed_one_do_not_overtake_it(failure: BookieError) -> None:
    async def talk(client: Client, bookie: FakeBookie, runtime: Runtime) -> None:
        bookie.hold()
        client.send(1)
        await runtime.clock.sleep(0.5)
        bookie.release(failure)
        for number in range(2, 12):  # while the broker looks for what the failure left behind, and after that
            client.send(number)
            await runtime.clock.sleep(0.01)
        assert not await client.heard()
        assert client.confirmed == [0]
        assert [text for text in await client.stored() if text not in ("m0", "m1")] == []
        await client.reconnect()
        await client.settle()
        assert client.confirmed == list(range(12))
        assert (await client.stored())[-11:] == [f"m{number}" for number in range(1, 12)]

    conversation(talk)


def test_nothing_is_confirmed_as_long_as_nothing_can_be_stored() -> None:
    async def talk(client: Client, bookie: FakeBookie, runtime: Runtime) -> None:
        bookie.failure = FAILURES["failed"]
        client.send(1)
        assert not await client.heard()
        client.send(2)  # sent before the client knew that the producer is closed
        await runtime.clock.sleep(5)
        assert client.confirmed == [0]
        bookie.failure = None
        await client.reconnect()
        await client.settle()
        assert await client.stored() == ["m0", "m1", "m2"]

    conversation(talk)


def test_a_send_that_times_out_gets_no_receipt_and_later_ones_follow_in_their_order() -> None:
    async def talk(client: Client, bookie: FakeBookie, runtime: Runtime) -> None:
        bookie.hold()
        client.send(1)
        await runtime.clock.sleep(0.5)
        client.send(2)
        assert not await client.heard()
        assert client.confirmed == [0]
        bookie.release()  # the bookie answers after all
        await client.reconnect()
        await client.settle()
        assert (await client.stored())[-2:] == ["m1", "m2"]

    conversation(talk)


@with_each
def test_a_producer_that_is_closed_by_its_client_has_no_receipt_of_a_failed_send(failure: BookieError) -> None:
    async def talk(client: Client, bookie: FakeBookie, runtime: Runtime) -> None:
        bookie.hold()
        client.send(1)
        client.peer.say(api.CommandCloseProducer(producer_id=1, request_id=7))
        await runtime.clock.sleep(5)
        bookie.failure = failure
        bookie.release(failure)
        frame = await client.peer.frame()
        assert frame is not None
        assert isinstance(frame.command, api.CommandSuccess | api.CommandCloseProducer), frame.command
        assert client.confirmed == [0]

    conversation(talk)


@pytest.mark.parametrize(
    "failure",
    [BookieUnavailableError("the disk is full"), StreamFencedError("taken over"), QuotaExceededError("full")],
)
def test_no_send_behind_a_failed_one_gets_a_receipt_even_if_it_is_stored(
    play: Callable[..., None], failure: WeirError
) -> None:
    """The gateway does not count on the broker, which fails what is behind a failed write."""

    async def talk(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        topic = stage.broker.at(TOPIC)
        topic.held_back = True
        for number in range(3):
            peer.send(1, number)
            await stage.later(0.1)
        producer = topic.producers[0]
        (first, *rest), producer.waiting = producer.waiting, []
        first[1].set_exception(failure)
        await stage.later(0.1)
        producer.waiting = rest
        producer.store()
        peer.send(1, 3)
        await stage.later(1)
        peer.say(api.CommandPing())
        heard: list[Any] = []
        while not heard or not isinstance(heard[-1], api.CommandPong):
            frame = await peer.frame()
            heard.append(frame.command)
        final = isinstance(failure, QuotaExceededError)  # refused by itself: the client may go on
        kinds = [type(one) for one in heard]
        assert kinds == [api.CommandSendError if final else api.CommandCloseProducer, api.CommandPong]

    play(talk)
