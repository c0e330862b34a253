"""Kafka's own clients with tokens, grants and TLS."""

import asyncio
import base64
import json
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from weir.broker.security.tokens import create_secret, create_token
from weir.testing.certificates import make_certificate
from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process

SECRET = create_secret()
WITH_TOKENS = (
    "auth.authenticate=true",
    "auth.authorise=true",
    "auth.superusers=admin",
    f"auth.token_secret=data:;base64,{base64.b64encode(SECRET).decode()}",
)


def token(role: str, seconds: float | None = None) -> str:
    expires_ms = None if seconds is None else int((time.time() + seconds) * 1000)
    return create_token(SECRET, role, expires_ms=expires_ms)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    up = UpProcess(tmp_path_factory.mktemp("guarded"), *WITH_TOKENS)
    up.start()
    yield up
    up.close()


def as_role(client: Any, role: str, password: str | None = None) -> dict[str, Any]:
    """The options with which a client says who it is, in its own words."""
    password = token(role) if password is None else password
    if type(client).__name__ == "ConfluentKafka":
        names = ("security_protocol", "sasl_mechanism", "sasl_username", "sasl_password")
    else:
        names = ("security_protocol", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password")
    return dict(zip(names, ("SASL_PLAINTEXT", "PLAIN", "anybody", password), strict=True))


def grant(up: UpProcess, topic: str, role: str, *actions: str) -> None:
    request = urllib.request.Request(
        f"{up.http_url}/admin/v2/persistent/public/default/{topic}/permissions/{role}",
        data=json.dumps(list(actions)).encode(),
        headers={"content-type": "application/json", "authorization": f"Bearer {token('admin')}"},
        method="POST",
    )
    urllib.request.urlopen(request, timeout=60).close()


def test_a_token_as_password_lets_its_role_in(client: Any, guarded: UpProcess, topic: str) -> None:
    options = as_role(client, "admin")
    assert client.send(guarded.kafka, topic, [b"x"], **options) == [(0, 0)]
    assert client.read(guarded.kafka, topic, {0: 0}, 1, **options) == [(0, 0, b"x")]


def librdkafka(up: UpProcess, password: str | None, errors: list[Any]) -> Any:
    said = (
        {} if password is None else {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": password}
    )
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": up.kafka,
            "security.protocol": "PLAINTEXT" if password is None else "SASL_PLAINTEXT",
            "error_cb": errors.append,
            **(said if password else {}),
        }
    )


@pytest.mark.parametrize("bad", ["none", "garbage", "expired", "another key"])
def test_without_a_good_token_nobody_comes_in(guarded: UpProcess, topic: str, bad: str) -> None:
    password = {
        "none": None,
        "garbage": "garbage",
        "expired": token("admin", -60),
        "another key": create_token(create_secret(), "admin"),
    }[bad]
    errors: list[Any] = []
    producer = librdkafka(guarded, password, errors)
    delivered: list[Any] = []
    producer.produce(topic, b"x", on_delivery=lambda *told: delivered.append(told))
    deadline = time.monotonic() + 60
    while not errors and time.monotonic() < deadline:
        producer.poll(0.1)
    assert errors
    if password is not None:
        assert confluent_kafka.KafkaError._AUTHENTICATION in [error.code() for error in errors]
    assert delivered == []
    producer.purge()


def test_the_other_clients_are_told_of_a_wrong_token(guarded: UpProcess) -> None:
    said = {
        "bootstrap_servers": guarded.kafka,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "me",
        "sasl_plain_password": "wrong",
    }

    async def start() -> None:
        producer = aiokafka.AIOKafkaProducer(**said)
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(aiokafka.errors.KafkaError):
        asyncio.run(start())
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaAdminClient(bootstrap_timeout_ms=1000, **said)


def test_a_role_does_what_it_was_granted_and_nothing_else(client: Any, guarded: UpProcess, topic: str) -> None:
    client.send(guarded.kafka, topic, [b"x"], **as_role(client, "admin"))
    reader, writer = as_role(client, "reader"), as_role(client, "writer")
    grant(guarded, topic, "reader", "consume")
    grant(guarded, topic, "writer", "produce")
    assert client.read(guarded.kafka, topic, {0: 0}, 1, **reader) == [(0, 0, b"x")]
    assert client.send(guarded.kafka, topic, [b"y"], **writer) == [(0, 1)]
    with pytest.raises(Exception, match=r"(?i)authoriz"):
        client.send(guarded.kafka, topic, [b"z"], **reader)


def test_a_consumer_that_may_not_read_is_told_so(guarded: UpProcess, topic: str) -> None:
    admin = librdkafka(guarded, token("admin"), [])
    admin.produce(topic, b"x")
    assert admin.flush(60) == 0
    grant(guarded, topic, "sender", "produce")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": guarded.kafka,
            "group.id": "none",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "me",
            "sasl.password": token("sender"),
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    refused = confluent_kafka.KafkaError
    told = consumer.poll(60).error().code()
    if told == refused.GROUP_AUTHORIZATION_FAILED:  # it asks for both at once, and has no groups either
        told = consumer.poll(60).error().code()
    assert told == refused.TOPIC_AUTHORIZATION_FAILED
    assert list(consumer.list_topics(timeout=60).topics) == [topic]  # and none of the others'
    consumer.close()


def test_a_client_goes_on_when_its_token_is_renewed(guarded: UpProcess, topic: str) -> None:
    """librdkafka authenticates anew on new connections; those whose token has ended are closed under it."""
    ends_s = time.monotonic() + 10  # a slow machine connects and sends within it
    producer = librdkafka(guarded, token("admin", 10), [])
    producer.produce(topic, b"before")
    assert producer.flush(60) == 0
    producer.set_sasl_credentials("me", token("admin"))
    while time.monotonic() < ends_s + 1:
        producer.poll(0.1)
    producer.produce(topic, b"after")
    assert producer.flush(60) == 0


# --- TLS ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Where a TLS listener with tokens is, and the certificate to trust."""
    folder = tmp_path_factory.mktemp("secure")
    made = make_certificate(folder)
    public, private = made.file, made.key_file
    up = UpProcess(
        folder,
        *WITH_TOKENS,
        "listeners.kafka_tls=127.0.0.1:0",
        "listeners.advertised_host=localhost",
        f"tls.certificate={public}",
        f"tls.key={private}",
    )
    up.start()
    yield up.addresses["kafka_tls"].replace("127.0.0.1", "localhost"), public
    up.close()


def test_tls_and_tokens_go_together(client: Any, secure: tuple[str, Path], topic: str) -> None:
    address, trusted = secure
    options = as_role(client, "admin") | {"security_protocol": "SASL_SSL"}
    match type(client).__name__:
        case "ConfluentKafka":
            options["ssl_ca_location"] = str(trusted)
        case "AioKafka":
            options["ssl_context"] = ssl.create_default_context(cafile=str(trusted))
        case _:
            options["ssl_cafile"] = str(trusted)
    values = [b"secret %d " % at + bytes(20_000) for at in range(30)]
    client.send(address, topic, values, **options)
    assert [value for _, _, value in client.read(address, topic, {0: 0}, 30, **options)] == values


def test_a_client_that_does_not_trust_the_certificate_does_not_connect(
    secure: tuple[str, Path], until: Callable[[Callable[[], Any]], None]
) -> None:
    errors: list[Any] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": secure[0], "security.protocol": "SSL", "error_cb": errors.append}
    )
    producer.produce("t", b"x")
    refused = confluent_kafka.KafkaError._SSL  # an address of localhost where nobody listens is an error, too
    until(lambda: producer.poll(0.01) or refused in [error.code() for error in errors])
    producer.purge()
