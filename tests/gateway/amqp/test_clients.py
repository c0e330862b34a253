"""Clients of RabbitMQ, each used as its users do: aio-pika and kombu here, Java's, Node's and Go's as programs of
their own (`bench/amqp_programs`)."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
_MISSING = 77
_TIMEOUT_S = 60.0


# --- aio-pika ---------------------------------------------------------------------------------------------------


async def test_aio_pika_publishes_with_confirms_and_consumes(amqp: str, name: str) -> None:
    import aio_pika
    from aio_pika.exceptions import ChannelNotFoundEntity, PublishError

    async with (
        asyncio.timeout(_TIMEOUT_S),
        await aio_pika.connect_robust(f"amqp://guest:guest@{amqp}/") as connection,
    ):
        channel = await connection.channel(on_return_raises=True)
        await channel.set_qos(2)
        exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(name, durable=True)
        await queue.bind(exchange, "a.#")
        for number in range(5):
            message = aio_pika.Message(b"%d" % number, delivery_mode=2, headers={"number": number}, priority=1)
            await exchange.publish(message, "a.b")
        with pytest.raises(PublishError):
            await exchange.publish(aio_pika.Message(b"lost"), "none")
        found = []
        async with queue.iterator() as messages:
            async for message in messages:
                if message.body == b"0" and not message.redelivered:
                    await message.nack(requeue=True)
                    continue
                async with message.process():
                    found.append((message.body, message.headers["number"], message.redelivered))
                if len(found) == 5:
                    break
        assert sorted(found) == [(b"%d" % n, n, n == 0) for n in range(5)]
        with pytest.raises(ChannelNotFoundEntity):
            await (await connection.channel()).declare_queue(f"{name}-none", passive=True)
        await queue.delete()
        await exchange.delete()


async def test_aio_pikas_remote_calls_and_its_worker_queues(amqp: str, name: str) -> None:
    import aio_pika
    from aio_pika.patterns import RPC, Master

    async with asyncio.timeout(_TIMEOUT_S), await aio_pika.connect(f"amqp://guest:guest@{amqp}/") as connection:
        channel = await connection.channel()
        rpc = await RPC.create(channel)

        async def doubled(*, number: int) -> int:
            return number * 2

        await rpc.register(name, doubled, auto_delete=True)
        assert await rpc.call(name, {"number": 21}) == 42

        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def work(*, task: int) -> None:
            done.set_result(task)

        master = Master(await connection.channel())
        worker = await master.create_worker(f"{name}-work", work, auto_delete=True)
        await master.create_task(f"{name}-work", {"task": 7})
        assert await done == 7
        await worker.close()


# --- kombu ------------------------------------------------------------------------------------------------------


def test_kombu_publishes_declares_and_drains(amqp: str, name: str) -> None:
    import kombu

    exchange = kombu.Exchange(name, "direct", durable=True)
    queue = kombu.Queue(name, exchange, routing_key="key", max_priority=5, message_ttl=600.0)
    found: list[Any] = []
    with kombu.Connection(
        f"amqp://guest:guest@{amqp}//", transport_options={"confirm_publish": True}
    ) as connection:
        with connection.Producer(serializer="json") as producer:
            for number in range(3):
                producer.publish(
                    {"number": number},
                    exchange=exchange,
                    routing_key="key",
                    declare=[queue],
                    priority=number,
                    compression="zlib",
                    retry=True,
                )

        def receive(body: Any, message: Any) -> None:
            if not message.delivery_info["redelivered"]:
                message.requeue()
                return
            found.append(body["number"])
            message.ack()

        with connection.Consumer(queue, callbacks=[receive], accept=["json"], prefetch_count=1):
            while len(found) < 3:
                connection.drain_events(timeout=_TIMEOUT_S)
        assert found == [2, 1, 0]
        queue(connection.default_channel).delete()
        exchange(connection.default_channel).delete()


def test_kombus_simple_queues_and_a_broker_that_it_finds_missing_things_on(amqp: str, name: str) -> None:
    import kombu
    from amqp.exceptions import NotFound

    with kombu.Connection(f"amqp://guest:guest@{amqp}//") as connection:
        simple = connection.SimpleQueue(name)
        simple.put({"hello": "world"})
        message = simple.get(timeout=_TIMEOUT_S)
        assert message.payload == {"hello": "world"}
        message.ack()
        assert simple.qsize() == 0
        with pytest.raises(simple.Empty):
            simple.get_nowait()
        simple.close()
        simple.queue(connection.channel()).delete()
        with pytest.raises(NotFound):
            connection.channel().queue_declare(f"{name}-none", passive=True)


# --- other languages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["java", "node", "go"])
def test_a_client_in_another_language_finds_everything_right(amqp: str, language: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.amqp_clients", language, "--server", amqp],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == _MISSING:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    steps = {"confirmed", "returned", "redelivered", "missing", "cancelled", "replied"}
    if language == "node":
        steps |= {"closed", "closed after its channel"}
    assert steps <= {line.partition(" ")[2] for line in done.stdout.splitlines()}
