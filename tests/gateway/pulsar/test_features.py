"""Delayed delivery, encryption, reconnection and restarts with the official client."""

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from weir.broker.security.tokens import create_key_pair
from weir.model.policies import Policies, Rate
from weir.model.topics import TopicName

TIMEOUT_MS = 60_000


# --- delay ----------------------------------------------------------------------------------------------


_SHARED = pulsar.ConsumerType.Shared
KINDS = [
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.KeyShared,
]


@pytest.mark.parametrize(
    "kind",
    [_SHARED, *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != _SHARED)],
    ids=str,
)
def test_a_delayed_message_comes_when_it_is_due_and_not_before(
    client: pulsar.Client, topic: str, kind: Any
) -> None:
    consumer = client.subscribe(topic, "s", kind)
    producer = client.create_producer(topic)
    began_ms = int(time.time() * 1000)
    due_ms = {b"now": 0, b"at": began_ms + 700, b"after": began_ms + 1200}
    producer.send(b"at", deliver_at=due_ms[b"at"], partition_key="k")
    producer.send(b"after", deliver_after=timedelta(milliseconds=1200), partition_key="k")
    producer.send(b"now", partition_key="k")
    got = []
    for _ in due_ms:
        message = consumer.receive(TIMEOUT_MS)
        assert time.time() * 1000 >= due_ms[message.data()]
        got.append(message.data())
        consumer.acknowledge(message)
    assert sorted(got) == sorted(due_ms)


def test_a_message_that_is_not_due_lets_others_pass(client: pulsar.Client, talk: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"in an hour", deliver_after=timedelta(hours=1))
    talk.send(producer, talk.numbered(3))
    assert talk.receive(consumer, 3) == talk.numbered(3)


def test_a_moment_that_has_passed_is_now(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"x", deliver_at=1)
    assert consumer.receive(TIMEOUT_MS).data() == b"x"


# --- encryption -----------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, str]:
    """Public and private key files."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public, private = tmp_path / "public.pem", tmp_path / "private.pem"
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return str(public), str(private)


@pytest.mark.parametrize("batching", [True, False], ids=["batched", "one by one"])
def test_encrypted_messages_pass_through(
    client: pulsar.Client, talk: Any, topic: str, keys: tuple[str, str], batching: bool
) -> None:
    reader = pulsar.CryptoKeyReader(*keys)
    consumer = client.subscribe(topic, "s", crypto_key_reader=reader)
    producer = client.create_producer(
        topic, encryption_key="k", crypto_key_reader=reader, batching_enabled=batching
    )
    talk.send(producer, talk.numbered(20))
    assert talk.receive(consumer, 20) == talk.numbered(20)
    sealed = client.subscribe(
        topic,
        "raw",
        initial_position=pulsar.InitialPosition.Earliest,
        crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,
    )
    assert b"000000" not in sealed.receive(TIMEOUT_MS).data()


@pytest.mark.slow
def test_a_public_key_alone_reads_nothing(
    client: pulsar.Client, talk: Any, topic: str, keys: tuple[str, str], tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(create_key_pair("RSA")[0])
    consumer = client.subscribe(topic, "s", crypto_key_reader=pulsar.CryptoKeyReader(keys[0], str(other)))
    reader = pulsar.CryptoKeyReader(*keys)
    client.create_producer(topic, encryption_key="k", crypto_key_reader=reader).send(b"secret")
    talk.nothing_more(consumer, client.create_producer(topic))


# --- connections that break -----------------------------------------------------------------------------


@pytest.mark.slow
def test_clients_come_back_after_a_cut(start_broker: Any, connect: Any, talk: Any, topic: str) -> None:
    node = start_broker()
    client = connect(node)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    sent = talk.numbered(60)
    for at, payload in enumerate(sent):
        producer.send(payload)
        if at % 20 == 10:
            node.cut()
    got: list[bytes] = []
    while len(set(got)) < 60:  # each receive has its own time limit
        got += talk.receive(consumer, 1)
    assert list(dict.fromkeys(got)) == sent


def test_acknowledgements_from_before_a_cut_count(start_broker: Any, connect: Any, talk: Any, topic: str) -> None:
    """What was delivered on a connection that broke is acknowledged on the next one, be it in batches."""
    node = start_broker()
    client = connect(node)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, **talk.batches(10))
    talk.send(producer, talk.numbered(30))
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(30)]
    before = node.sessions()
    node.cut()
    # The client believes to be connected before its consumer is there, and what it acknowledges then is lost.
    talk.until(lambda: any(each not in before and each.consumers.are_open for each in node.sessions()))
    for message in messages[:20]:
        consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    assert sorted(talk.receive(again, 10)) == talk.numbered(30)[20:]
    talk.nothing_more(again, client.create_producer(topic))


def test_everything_survives_a_restart(start_broker: Any, connect: Any, talk: Any, topic: str) -> None:
    node = start_broker()
    client = connect(node)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, **talk.batches(10))
    talk.send(producer, talk.numbered(100))
    assert talk.receive(consumer, 40) == talk.numbered(100)[:40]
    client.close()
    node.restart()
    client = connect(node)
    again = client.subscribe(topic, "s")
    assert talk.receive(again, 60) == talk.numbered(100)[40:]
    talk.nothing_more(again, client.create_producer(topic))


@pytest.mark.slow
def test_a_producer_rides_through_a_restart(start_broker: Any, connect: Any, talk: Any, topic: str) -> None:
    node = start_broker()
    node.set_policies(topic, Policies(deduplication=True))
    client = connect(node)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="me", send_timeout_millis=0)
    failures: list[Any] = []
    sent = talk.numbered(300)

    def send() -> None:
        for payload in sent:
            try:
                producer.send(payload)
            except pulsar.PulsarException as failed:
                failures.append(failed)

    thread = threading.Thread(target=send)
    thread.start()
    first = talk.receive(consumer, 20)
    node.restart()
    got = list(first)
    while len(set(got)) < 300:
        got += talk.receive(consumer, 1)
    thread.join(60)
    assert not failures
    assert list(dict.fromkeys(got)) == sent


def test_a_deleted_topic_tells_its_clients(weir_broker: Any, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s")
    producer = client.create_producer(topic, send_timeout_millis=TIMEOUT_MS)
    producer.send(b"x")
    weir_broker.call(lambda: weir_broker.broker.delete(TopicName.parse(topic), force=True))
    # Both come back by themselves: the topic is made anew.
    producer.send(b"y")


def test_a_terminated_topic_is_read_to_its_end(
    weir_broker: Any, client: pulsar.Client, talk: Any, topic: str
) -> None:
    client.subscribe(topic, "behind").close()  # what the other one acknowledges must not be trimmed meanwhile
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    talk.send(producer, talk.numbered(5))

    async def terminate() -> None:
        await (await weir_broker.broker.topic(TopicName.parse(topic), role="")).stored.terminate()

    weir_broker.call(terminate)
    assert talk.receive(consumer, 5) == talk.numbered(5)
    consumer.close()
    with pytest.raises(pulsar.TopicTerminated):
        producer.send(b"too late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert talk.read(reader, 5) == talk.numbered(5)
    sessions = weir_broker.sessions()
    talk.silent(client.subscribe(topic, "s"))
    assert weir_broker.sessions() == sessions


@pytest.mark.slow
def test_publish_rates_slow_the_producer_down(
    weir_broker: Any, client: pulsar.Client, talk: Any, topic: str
) -> None:
    weir_broker.set_policies(topic, Policies(publish_rate=Rate(messages=100)))
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    began = time.monotonic()
    for _ in range(3):  # what comes too fast is stored, and then nothing is read for as long as it was too much
        talk.send(producer, talk.numbered(150))
    assert time.monotonic() - began > 1
    assert talk.receive(consumer, 450) == talk.numbered(150) * 3
