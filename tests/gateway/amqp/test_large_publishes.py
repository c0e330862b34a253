"""Large messages of many publishers while the storage does not answer: one budget bounds them until stored."""

import asyncio
from contextlib import AsyncExitStack

from tests.gateway.amqp.test_failed_writes import Client

from weir.gateway.amqp.settings import AmqpSettings
from weir.model.ledger import Quorum
from weir.runtime.interfaces import Runtime
from weir.stream.settings import StreamSettings
from weir.testing.broker.fake_storage import compose_on_fakes, stage_composition
from weir.testing.storage.fakes import FakeBookiePool
from weir.testing.world.world import World, simulate
from weir.wire.amqp.methods import confirm, queue

MIB = 1 << 20
CLIENTS = 8
BODY = "x" * (5 * MIB)


async def main(runtime: Runtime) -> None:
    how = stage_composition(None, streams=StreamSettings(quorum=Quorum(1, 1, 1)), producer_ids=100)
    async with AsyncExitStack() as stack:
        bookies = FakeBookiePool()
        composed = await compose_on_fakes(runtime, how, stack, bookies=1, pool=bookies)
        # Half of it is for large messages: three of these at a time.
        server = await composed.serve_amqp(AmqpSettings(host="server", max_received_bytes=32 * MIB))
        clients = []
        for number in range(CLIENTS):
            client = Client(await runtime.net.connect("server", server.port), runtime)
            await client.open()
            await client.call(queue.Declare(queue=f"q{number}", durable=True), queue.DeclareOk)
            await client.call(confirm.Select(), confirm.SelectOk)
            client.publish("first", name=f"q{number}")
            await client.answered()
            clients.append(client)
        (bookie,) = bookies.bookies.values()
        bookie.hold()
        try:
            for number, client in enumerate(clients):
                client.publish(BODY, name=f"q{number}")
            await runtime.clock.sleep(8)
            under_way = sum(session.load.publish_bytes for session in server.sessions)
            assert 3 * len(BODY) <= under_way <= 16 * MIB
        finally:  # else the broker would not close
            bookie.release()
        await asyncio.gather(*(client.answered() for client in clients))
        assert [client.confirmed for client in clients] == [[1, 2]] * CLIENTS


def test_bodies_that_are_not_stored_share_the_budget_of_those_that_are_received() -> None:
    async def scenario(world: World) -> None:
        await world.node("server").start(main)

    simulate(1, scenario)
