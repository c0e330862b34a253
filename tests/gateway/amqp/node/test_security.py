"""Who comes in by AMQP and what they may do: tokens and passwords, certificates, grants, and their end."""

import base64
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pika
import pika.credentials
import pulsar
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, ProbableAuthenticationError

from weir.broker.security.tokens import create_secret, create_token
from weir.model.registry import Action, User
from weir.model.topics import DEFAULT_NAMESPACE
from weir.testing.certificates import make_certificate

from .conftest import Node, until

SECRET = create_secret()
AUTH = (
    "auth.authenticate=true",
    "auth.authorise=true",
    "auth.superusers=admin",
    f"auth.token_secret=data:;base64,{base64.b64encode(SECRET).decode()}",
)


def token(role: str, seconds: float | None = None) -> str:
    expires_ms = None if seconds is None else int((time.time() + seconds) * 1000)
    return create_token(SECRET, role, expires_ms=expires_ms)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("guarded")
    node = Node(folder, *AUTH, "listeners.kafka=127.0.0.1:0", "listeners.pulsar=127.0.0.1:0")
    node.start()
    yield node
    node.stop()


def test_a_token_is_a_password_and_its_role_counts(guarded: Node, name: str) -> None:
    connection = guarded.connect(user="whoever", password=token("admin"))
    channel = connection.channel()
    channel.queue_declare(name)
    # A message may say that its publisher published it, and nobody else.
    channel.basic_publish("", name, b"x", pika.BasicProperties(user_id="admin"))
    assert channel.queue_declare(name, passive=True).method.message_count == 1
    channel.basic_publish("", name, b"x", pika.BasicProperties(user_id="whoever"))
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.queue_declare(name, passive=True)
    assert (closed.value.reply_code, closed.value.reply_text) == (
        406,
        "PRECONDITION_FAILED - user_id property set to 'whoever' but authenticated user was 'admin'",
    )
    connection.close()


@pytest.mark.parametrize("password", ["guest", "", token("admin", -60), create_token(create_secret(), "admin")])
def test_without_a_good_token_nobody_comes_in(guarded: Node, password: str) -> None:
    with pytest.raises(
        ProbableAuthenticationError, match="Login was refused using authentication mechanism PLAIN"
    ):
        guarded.connect(password=password)


def test_one_user_comes_in_by_every_protocol_with_one_password(guarded: Node, name: str) -> None:
    registry = guarded.up.composed.registry

    async def make() -> None:
        await registry.users.put(User("shop", registry.users.hashed("correct horse")))
        await registry.grants.grant(DEFAULT_NAMESPACE, "shop", [Action.PRODUCE, Action.CONSUME])

    guarded.call(make)
    amqp = guarded.connect(user="shop", password="correct horse")
    channel = amqp.channel()
    channel.queue_declare(name, durable=True)

    said = {"sasl.mechanism": "PLAIN", "sasl.username": "shop", "sasl.password": "correct horse"}
    servers = {"bootstrap.servers": str(guarded.up.addresses["kafka"]), "security.protocol": "SASL_PLAINTEXT"}
    kafka = confluent_kafka.Producer(servers | said)
    kafka.produce(name, b"by Kafka")
    assert kafka.flush(60) == 0

    url = f"pulsar://{guarded.up.addresses['pulsar']}"
    client = pulsar.Client(url, authentication=pulsar.AuthenticationBasic("shop", "correct horse"))
    client.create_producer(f"persistent://public/default/{name}").send(b"by Pulsar")
    client.close()
    got = [until(lambda: channel.basic_get(name, auto_ack=True)[2]) for _ in range(2)]
    assert got == [b"by Kafka", b"by Pulsar"]
    amqp.close()

    refused: list[Any] = []
    wrong = confluent_kafka.Producer(servers | said | {"sasl.password": "wrong", "error_cb": refused.append})
    until(lambda: wrong.poll(0.01) or refused)
    assert refused[0].code() == confluent_kafka.KafkaError._AUTHENTICATION


def test_who_has_no_grant_is_refused(guarded: Node, name: str) -> None:
    admin = guarded.connect(password=token("admin"))
    admin.channel().queue_declare(name, durable=True)
    stranger = guarded.connect(user="stranger", password=token("stranger"))
    refused = (403, f"ACCESS_REFUSED - access to queue '{name}' in vhost '/' refused for user 'stranger'")
    calls: list[Callable[[Any], Any]] = [
        lambda channel: channel.queue_declare(name, durable=True),
        lambda channel: channel.queue_delete(name),
        lambda channel: channel.basic_consume(name, print),
        lambda channel: channel.basic_get(name),
    ]
    for call in calls:
        with pytest.raises(ChannelClosedByBroker) as closed:
            call(stranger.channel())
        assert (closed.value.reply_code, closed.value.reply_text) == refused
    publisher = stranger.channel()
    publisher.basic_publish("", name, b"x")
    with pytest.raises(ChannelClosedByBroker) as closed:
        publisher.queue_declare("", exclusive=True)
    assert closed.value.reply_code == 403

    async def grant() -> None:
        await guarded.up.composed.registry.grants.grant(DEFAULT_NAMESPACE, "stranger", [Action.PRODUCE])

    guarded.call(grant)
    publisher = stranger.channel()
    publisher.confirm_delivery()
    publisher.basic_publish("", name, b"x", mandatory=True)
    assert admin.channel().queue_declare(name, passive=True).method.message_count == 1
    admin.close()
    stranger.close()


@pytest.mark.soak
def test_a_connection_ends_with_its_token_unless_it_is_renewed(guarded: Node) -> None:
    """A machine that is slower than a token lasts cannot show it."""
    ending = guarded.connect(password=token("admin", 4))
    renewed = guarded.connect(password=token("admin", 4))
    renewed.update_secret(token("admin"), "it ends")
    with pytest.raises(ConnectionClosedByBroker) as closed:
        until(lambda: False, ending)
    assert closed.value.reply_code == 320
    renewed.channel()
    with pytest.raises(ConnectionClosedByBroker) as closed:
        renewed.update_secret("no token", "wrong")
    assert (closed.value.reply_code, closed.value.reply_text) == (
        530,
        "NOT_ALLOWED - New secret was refused by one of the backends",
    )


def test_a_certificate_says_who_somebody_is(tmp_path: Path, start_weir: Callable[..., Node], name: str) -> None:
    server = make_certificate(tmp_path)
    mine = make_certificate(tmp_path, "admin", server)
    node = start_weir(
        *AUTH,
        "listeners.amqps=127.0.0.1:0",
        f"tls.certificate={server.file}",
        f"tls.key={server.key_file}",
        f"tls.client_ca={server.file}",
        "tls.client_auth=optional",
    )
    context = ssl.create_default_context(cafile=str(server.file))
    context.load_cert_chain(mine.file, mine.key_file)
    connection = node.connect(
        port=node.up.addresses["amqps"].port,
        credentials=pika.credentials.ExternalCredentials(),
        ssl_options=pika.SSLOptions(context, "localhost"),
    )
    assert connection.channel().queue_declare(name).method.queue == name
    (listed,) = node.up.composed.connections.all()
    assert (listed.info.role, listed.info.tls, listed.info.auth_mechanism) == ("admin", True, "EXTERNAL")
    connection.close()
