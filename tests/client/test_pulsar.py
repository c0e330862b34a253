"""The small client against a whole Weir over real sockets."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from weir.broker.security.tokens import create_secret, create_token
from weir.client.access import ClientSettings, ConsumerSettings, ProducerSettings
from weir.client.pulsar.client import PulsarClient
from weir.client.pulsar.consumer import Consumer, Subscribing
from weir.client.pulsar.messages import Incoming, Outgoing
from weir.model.errors import (
    ConfigError,
    ConnectFailedError,
    ConnectionLostError,
    ConsumerClosedError,
    InvalidNameError,
    MessageTooLargeError,
    NotAuthenticatedError,
    ProducerClosedError,
    SubscriptionBusyError,
    TopicClosedError,
    TopicNotFoundError,
)
from weir.runtime.interfaces import Runtime
from weir.server.broker_node import BrokerNode
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.ids import EARLIEST

StartWeir = Callable[..., Awaitable[BrokerNode]]

FROM_START = Subscribing("s", earliest=True)


@pytest.fixture
async def client(weir: BrokerNode, runtime: Runtime) -> AsyncIterator[PulsarClient]:
    async with PulsarClient(runtime, f"pulsar://{weir.addresses['pulsar']}") as client:
        yield client


async def take(consumer: Consumer, count: int) -> list[Incoming]:
    async with asyncio.timeout(60):
        found = [await consumer.receive() for _ in range(count)]
    return [message for message in found if message is not None]


async def test_a_message_comes_back_with_all_that_was_said_about_it(client: PulsarClient) -> None:
    producer = await client.producer("t", ProducerSettings(name="me"))
    sent = Outgoing(b"hello", key="k", properties={"a": "b"}, event_ms=77)
    at = await producer.send(sent)
    consumer = await client.consumer("t", FROM_START)
    (message,) = await take(consumer, 1)
    assert (message.id, message.payload, message.key, message.properties) == (at, b"hello", b"k", {"a": "b"})
    assert (message.event_ms, message.producer, message.redelivered) == (77, "me", 0)
    assert message.publish_ms > 1_600_000_000_000


async def test_messages_of_one_turn_become_a_batch_and_keep_their_order(client: PulsarClient) -> None:
    producer = await client.producer("t")
    receipts = [producer.send(Outgoing(str(at).encode(), key=f"k{at % 3}")) for at in range(500)]
    ids = await asyncio.gather(*receipts)
    assert {at[:2] for at in ids} == {ids[0][:2]}
    assert [at.batch_index for at in ids] == list(range(500))
    consumer = await client.consumer("t", FROM_START)
    messages = await take(consumer, 500)
    assert [int(message.payload) for message in messages] == list(range(500))
    assert [message.id for message in messages] == ids
    assert messages[4].key == b"k1"


async def test_keys_may_be_any_bytes(client: PulsarClient) -> None:
    producer = await client.producer("t")
    await producer.send(Outgoing(b"", key=b"\x00\xff"))
    assert (await take(await client.consumer("t", FROM_START), 1))[0].key == b"\x00\xff"


async def test_what_is_acknowledged_does_not_come_again_and_the_rest_does(client: PulsarClient) -> None:
    producer = await client.producer("t")
    await asyncio.gather(*(producer.send(Outgoing(str(at).encode())) for at in range(10)))  # one batch
    consumer = await client.consumer("t", FROM_START)
    messages = await take(consumer, 10)
    await consumer.ack(messages[0], messages[3], messages[9])
    await consumer.close()
    again = await take(await client.consumer("t", FROM_START), 7)
    assert [int(message.payload) for message in again] == [1, 2, 4, 5, 6, 7, 8]


async def test_acknowledging_up_to_a_message_covers_all_before_it(client: PulsarClient) -> None:
    producer = await client.producer("t")
    for at in range(10):
        await producer.send(Outgoing(str(at).encode()))
    consumer = await client.consumer("t", FROM_START)
    messages = await take(consumer, 10)
    await consumer.ack_up_to(messages[6])
    await consumer.close()
    again = await take(await client.consumer("t", FROM_START), 3)
    assert [int(message.payload) for message in again] == [7, 8, 9]


async def test_what_is_given_back_comes_again(client: PulsarClient) -> None:
    producer = await client.producer("t")
    await producer.send(Outgoing(b"x"))
    consumer = await client.consumer("t", Subscribing("s", type=api.CommandSubscribe.Shared, earliest=True))
    (message,) = await take(consumer, 1)
    consumer.redeliver(message)
    (again,) = await take(consumer, 1)
    assert (again.id, again.redelivered) == (message.id, 1)


async def test_credit_is_given_as_messages_are_taken(client: PulsarClient) -> None:
    producer = await client.producer("t")
    for at in range(100):
        await producer.send(Outgoing(str(at).encode()))
    consumer = await client.consumer("t", FROM_START, ConsumerSettings(queue=7))
    messages = await take(consumer, 100)
    assert [int(message.payload) for message in messages] == list(range(100))


async def test_credit_is_given_for_what_was_acknowledged_of_a_batch_before(client: PulsarClient) -> None:
    producer = await client.producer("t")
    for _ in range(8):  # batches
        await asyncio.gather(*(producer.send(Outgoing(str(at).encode())) for at in range(3)))
    consumer = await client.consumer("t", FROM_START, ConsumerSettings(queue=100))
    await consumer.ack(*[message for message in await take(consumer, 24) if message.payload != b"1"])
    await consumer.close()
    consumer = await client.consumer("t", FROM_START, ConsumerSettings(queue=10))
    assert [message.payload for message in await take(consumer, 8)] == [b"1"] * 8


async def test_a_reader_leaves_no_subscription_behind(client: PulsarClient) -> None:
    producer = await client.producer("t")
    await producer.send(Outgoing(b"x"))
    for _ in range(2):
        reader = await client.consumer("t", Subscribing("r", durable=False, start=EARLIEST))
        assert [message.payload for message in await take(reader, 1)] == [b"x"]
        await reader.close()


async def test_last_ids_name_the_last_message(client: PulsarClient) -> None:
    producer = await client.producer("t")
    consumer = await client.consumer("t", FROM_START)
    at = await producer.send(Outgoing(b"x"))
    assert [last[:2] for last in await consumer.last_ids()] == [at[:2]]


async def test_a_sought_consumer_is_closed_and_its_successor_begins_there(client: PulsarClient) -> None:
    producer = await client.producer("t")
    ids = [await producer.send(Outgoing(str(at).encode())) for at in range(5)]
    consumer = await client.consumer("t", FROM_START)
    await consumer.ack(*await take(consumer, 5))
    await consumer.seek(ids[2])
    with pytest.raises(ConsumerClosedError):
        await take(consumer, 1)
    again = await take(await client.consumer("t", FROM_START), 3)
    assert [int(message.payload) for message in again] == [2, 3, 4]


async def test_unsubscribing_forgets_the_subscription(client: PulsarClient) -> None:
    producer = await client.producer("t")
    await producer.send(Outgoing(b"x"))
    consumer = await client.consumer("t", FROM_START)
    await consumer.ack(*await take(consumer, 1))
    await consumer.unsubscribe()
    assert [m.payload for m in await take(await client.consumer("t", FROM_START), 1)] == [b"x"]


async def test_a_topic_with_partitions_is_one_to_its_users(start_weir: StartWeir, runtime: Runtime) -> None:
    weir = await start_weir("defaults.auto_create_partitions=3")
    async with PulsarClient(runtime, f"pulsar://{weir.addresses['pulsar']}") as client:
        assert len(await client.partitions("t")) == 3
        producer = await client.producer("t")
        for at in range(30):
            await producer.send(Outgoing(str(at).encode(), key=f"k{at % 5}"))
        consumer = await client.consumer("t", FROM_START)
        messages = await take(consumer, 30)
        assert sorted(int(message.payload) for message in messages) == list(range(30))
        by_key: dict[bytes | None, list[Incoming]] = {}
        for message in messages:
            by_key.setdefault(message.key, []).append(message)
        for key, mine in by_key.items():
            assert len({message.part for message in mine}) == 1, key
            assert [int(message.payload) for message in mine] == sorted(int(message.payload) for message in mine)
        assert len({message.part for message in messages}) > 1
        await consumer.ack(*messages)
        assert consumer.waiting() == 0


async def test_when_one_partition_refuses_the_others_are_let_go_of(
    start_weir: StartWeir, runtime: Runtime
) -> None:
    weir = await start_weir("defaults.auto_create_partitions=3")
    async with PulsarClient(runtime, f"pulsar://{weir.addresses['pulsar']}") as client:
        await client.partitions("t")
        blocker = await client.consumer("t-partition-2", FROM_START)
        with pytest.raises(SubscriptionBusyError):
            await client.consumer("t", FROM_START)
        await blocker.close()
        assert len((await client.consumer("t", FROM_START)).topics) == 3


async def test_a_second_exclusive_consumer_is_refused(client: PulsarClient) -> None:
    await client.consumer("t", FROM_START)
    with pytest.raises(SubscriptionBusyError):
        await client.consumer("t", FROM_START)


async def test_a_topic_that_is_not_there_can_be_left_uncreated(client: PulsarClient) -> None:
    with pytest.raises(TopicNotFoundError):
        await client.consumer("nothing", Subscribing("s", create_topic=False))


async def test_a_message_that_is_too_large_is_refused_here(client: PulsarClient) -> None:
    producer = await client.producer("t")
    with pytest.raises(MessageTooLargeError):
        await producer.send(Outgoing(bytes(17 * 1024 * 1024)))
    await producer.send(Outgoing(b"fine"))


async def test_when_the_broker_goes_everyone_is_told(
    client: PulsarClient, weir: BrokerNode, runtime: Runtime
) -> None:
    producer = await client.producer("t")
    consumer = await client.consumer("t", FROM_START)
    await producer.send(Outgoing(b"x"))
    await take(consumer, 1)
    await weir.close()
    with pytest.raises((ProducerClosedError, ConnectionLostError, TopicClosedError)):
        await producer.send(Outgoing(b"y"))
    with pytest.raises((ConsumerClosedError, ConnectionLostError, TopicClosedError)):
        await take(consumer, 1)
    with pytest.raises(ConnectFailedError):
        await client.producer("t")


async def test_wrong_names_and_urls_are_refused(client: PulsarClient, runtime: Runtime) -> None:
    with pytest.raises(InvalidNameError):
        await client.producer("a/b")
    for url in ("http://127.0.0.1:8080", "nonsense", "pulsar://", "pulsar://host:port"):
        with pytest.raises(ConfigError):
            PulsarClient(runtime, url)


async def test_a_token_is_asked_for_and_taken(start_weir: StartWeir, runtime: Runtime) -> None:
    secret = create_secret()
    text = base64.urlsafe_b64encode(secret).decode()
    weir = await start_weir("auth.authenticate=true", f"auth.token_secret={text}")
    url = f"pulsar://{weir.addresses['pulsar']}"
    async with PulsarClient(runtime, url) as nobody:
        with pytest.raises(NotAuthenticatedError, match="WEIR_TOKEN"):
            await nobody.producer("t")
    async with PulsarClient(runtime, url, ClientSettings(token=create_token(secret, "alice"))) as alice:
        await (await alice.producer("t")).send(Outgoing(b"x"))


async def test_a_message_that_is_acknowledged_twice_at_once_brings_nothing_of_its_batch_back(
    client: PulsarClient,
) -> None:
    producer = await client.producer("t")
    await asyncio.gather(*(producer.send(Outgoing(str(at).encode())) for at in range(2)))  # one batch
    await producer.send(Outgoing(b"2"))
    consumer = await client.consumer("t", FROM_START)
    first, second, _ = await take(consumer, 3)
    await consumer.ack(first, second, second)
    await consumer.close()
    (again,) = await take(await client.consumer("t", FROM_START), 1)
    assert again.payload == b"2"
