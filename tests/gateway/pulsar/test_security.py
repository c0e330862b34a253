"""Tokens, grants and TLS with the official client."""

import base64
import http.client
import ssl
import time
from pathlib import Path
from typing import Any

import pulsar
import pytest

from weir.broker.security.tokens import create_key_pair, create_secret, create_token, load_private_key
from weir.model.registry import Action
from weir.model.topics import NamespaceName, TopicName
from weir.testing.certificates import Certificate, make_certificate
from weir.wire.pulsar import pulsar_api_pb2 as api

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


def as_role(connect: Any, node: Any, role: str, **more: Any) -> pulsar.Client:
    return connect(node, authentication=pulsar.AuthenticationToken(token(role)), **more)


def grant(node: Any, scope: Any, role: str, *actions: Action) -> None:
    node.call(lambda: node.registry.grants.grant(scope, role, actions))


@pytest.fixture
def guarded(start_broker: Any) -> Any:
    return start_broker(*WITH_TOKENS)


def test_a_token_lets_its_role_in(guarded: Any, connect: Any, talk: Any, topic: str) -> None:
    client = as_role(connect, guarded, "admin")
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"x")
    assert talk.receive(consumer, 1) == [b"x"]


@pytest.mark.parametrize("key", ["RSA", "EC"])
def test_a_token_of_a_key_pair(start_broker: Any, connect: Any, tmp_path: Path, topic: str, key: str) -> None:
    private, public = create_key_pair(key)
    (tmp_path / "public.pem").write_bytes(public)
    node = start_broker("auth.authenticate=true", f"auth.token_public_key=file://{tmp_path / 'public.pem'}")
    signed = create_token(load_private_key(private), "me")
    connect(node, authentication=pulsar.AuthenticationToken(signed)).create_producer(topic).send(b"x")


#: The client waits a second each time.
BAD_TOKENS = [
    "garbage",
    *(pytest.param(bad, marks=pytest.mark.slow) for bad in ("none", "expired", "another key")),
]


@pytest.mark.parametrize("bad", BAD_TOKENS)
def test_without_a_good_token_nobody_comes_in(guarded: Any, connect: Any, topic: str, bad: str) -> None:
    options: dict[str, Any] = {}
    if bad != "none":
        text = {
            "garbage": "garbage",
            "expired": token("admin", -60),
            "another key": create_token(create_secret(), "admin"),
        }[bad]
        options["authentication"] = pulsar.AuthenticationToken(text)
    # The client connects again and again until its time is over, whatever it is told.
    client = pulsar.Client(guarded.url, operation_timeout_seconds=1, logger=quiet(), **options)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    client.close()
    assert guarded.broker.loaded == []


def quiet() -> Any:
    return pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")


def test_a_role_does_what_it_was_granted_and_nothing_else(
    guarded: Any, connect: Any, talk: Any, topic: str
) -> None:
    name = TopicName.parse(topic)
    client = as_role(connect, guarded, "reader")
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(topic)
    with pytest.raises(pulsar.AuthorizationError):
        client.subscribe(topic, "s")
    with pytest.raises(pulsar.AuthorizationError):
        client.get_topic_partitions(topic)
    grant(guarded, name, "reader", Action.CONSUME)
    consumer = client.subscribe(topic, "s")
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(topic)
    writer = as_role(connect, guarded, "writer")
    grant(guarded, NamespaceName("public", "default"), "writer", Action.PRODUCE)
    writer.create_producer(topic).send(b"x")
    assert talk.receive(consumer, 1) == [b"x"]
    with pytest.raises(pulsar.AuthorizationError):
        writer.subscribe(topic, "s2")


def test_credentials_are_renewed_before_they_end(guarded: Any, connect: Any, talk: Any, topic: str) -> None:
    """When they are asked for is shown in simulated time; here the client is asked three times in a row."""
    given: list[str] = []

    def fresh() -> str:
        given.append(token("admin", 1000 + len(given)))
        return given[-1]

    client = connect(guarded, authentication=pulsar.AuthenticationToken(fresh))
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    sessions = guarded.sessions()

    async def ask(session: Any) -> None:
        session.credentials.ask("token", 60)

    for _ in range(3):
        asked = len(given)
        for session in sessions:
            guarded.call(lambda session=session: ask(session))
        talk.until(lambda asked=asked: len(given) > asked)
    producer.send(b"x")
    assert talk.receive(consumer, 1) == [b"x"]
    assert guarded.sessions() == sessions


def test_a_connection_ends_with_its_credentials(guarded: Any, connect: Any, talk: Any, topic: str) -> None:
    """A client that has no newer token when it is asked is sent away, and let in again when it has one."""
    tokens = [token("admin", 1000)]
    client = connect(guarded, authentication=pulsar.AuthenticationToken(lambda: tokens[-1]))
    producer = client.create_producer(topic, send_timeout_millis=60_000)
    producer.send(b"x")
    before = guarded.sessions()
    tokens.append(token("admin", -60))

    async def ask() -> None:
        for session in before:
            session.credentials.ask("token", 60)

    guarded.call(ask)
    talk.until(lambda: not any(session in before for session in guarded.sessions()))
    tokens.append(token("admin"))
    producer.send(b"y")


@pytest.mark.slow
def test_a_grant_taken_back_ends_what_is_open(guarded: Any, connect: Any, talk: Any, topic: str) -> None:
    name = TopicName.parse(topic)
    both = as_role(connect, guarded, "both")
    grant(guarded, name, "both", Action.CONSUME, Action.PRODUCE)
    consumer = both.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = both.create_producer(topic, send_timeout_millis=3000)
    producer.send(b"x")
    assert talk.receive(consumer, 1, ack=False) == [b"x"]
    (served,) = guarded.broker.loaded

    grant(guarded, name, "both", Action.CONSUME)  # instead of both
    talk.until(lambda: not served.producers)
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"y")
    with pytest.raises(pulsar.AuthorizationError):
        both.create_producer(topic)
    assert len(served.subscriptions["s"].consumers) == 1

    guarded.call(lambda: guarded.registry.grants.revoke(name, "both"))
    talk.until(lambda: not served.subscriptions["s"].consumers)
    for ask in (lambda: consumer.seek(pulsar.MessageId.earliest), consumer.unsubscribe):
        with pytest.raises(pulsar.PulsarException):
            ask()
    with pytest.raises(pulsar.AuthorizationError):
        both.subscribe(topic, "s")
    assert served.subscriptions["s"].backlog == 1

    admin = as_role(connect, guarded, "admin")
    admin.create_producer(topic).send(b"z")
    assert talk.receive(admin.subscribe(topic, "s"), 2) == [b"x", b"z"]


def test_without_its_grant_a_consumer_neither_seeks_nor_unsubscribes(guarded: Any, topic: str) -> None:
    name = TopicName.parse(topic)
    grant(guarded, name, "reader", Action.CONSUME)

    async def say() -> None:
        peer = await guarded.peer()
        await peer.greet(auth_method_name="token", auth_data=token("reader").encode())
        await peer.subscribe(topic)
        await guarded.registry.grants.revoke(name, "reader")
        await peer.hear(api.CommandCloseConsumer)
        earliest = api.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
        for command in (
            api.CommandSeek(consumer_id=1, request_id=1, message_id=earliest),
            api.CommandUnsubscribe(consumer_id=1, request_id=1),
            api.CommandSubscribe(
                topic=topic,
                subscription="s",
                subType=api.CommandSubscribe.Exclusive,
                consumer_id=1,
                request_id=1,
            ),
        ):
            peer.say(command)
            assert (await peer.hear(api.CommandError)).error == api.ServerError.AuthorizationError

    guarded.call(say)
    (served,) = guarded.broker.loaded
    assert list(served.subscriptions) == ["s"]


def test_who_may_only_produce_makes_no_subscriptions(guarded: Any, connect: Any, topic: str) -> None:
    """By `initial_subscription_name`, which is answered the same whether there is one or not."""
    name = TopicName.parse(topic)
    grant(guarded, name, "writer", Action.PRODUCE)
    grant(guarded, name, "both", Action.PRODUCE, Action.CONSUME)

    async def say() -> None:
        writer, both = await guarded.peer(), await guarded.peer()
        for peer, role in ((writer, "writer"), (both, "both")):
            await peer.greet(auth_method_name="token", auth_data=token(role).encode())
        command = api.CommandProducer(
            topic=topic, producer_id=1, request_id=1, initial_subscription_name="planted"
        )
        writer.say(command)
        before = await writer.hear(api.CommandError)
        assert before.error == api.ServerError.AuthorizationError
        (served,) = guarded.broker.loaded
        assert list(served.subscriptions) == []
        both.say(command)
        await both.hear(api.CommandProducerSuccess)
        assert list(served.subscriptions) == ["planted"]
        writer.say(command)
        assert (await writer.hear(api.CommandError)) == before

    guarded.call(say)
    producer = as_role(connect, guarded, "writer").create_producer(topic)
    producer.send(b"x")


@pytest.mark.parametrize("role", ["stranger", "neighbour"])
def test_what_is_not_allowed_looks_like_what_is_not_there(guarded: Any, topic: str, role: str) -> None:
    """Every command that names a topic or a namespace: not a byte differs, but for the names."""
    grant(guarded, TopicName.parse(f"{topic}-other"), "neighbour", Action.PRODUCE, Action.CONSUME)
    local = TopicName.parse(topic).local

    def commands(name: str, namespace: str) -> list[Any]:
        named = f"persistent://{namespace}/{name}"
        schema = api.Schema(name="s", schema_data=b"", type=api.Schema.String)
        kind = api.CommandSubscribe.Exclusive
        return [
            api.CommandPartitionedTopicMetadata(topic=named, request_id=1),
            api.CommandPartitionedTopicMetadata(topic=f"{named}-partition-0", request_id=1),
            api.CommandLookupTopic(topic=named, request_id=1),
            api.CommandProducer(topic=named, producer_id=1, request_id=1),
            api.CommandSubscribe(topic=named, subscription="s", subType=kind, consumer_id=1, request_id=1),
            api.CommandGetSchema(topic=named, request_id=1),
            api.CommandGetOrCreateSchema(topic=named, request_id=1, schema=schema),
            api.CommandGetTopicsOfNamespace(namespace=namespace, request_id=1),
            api.CommandWatchTopicList(namespace=namespace, topics_pattern=".*", watcher_id=1, request_id=1),
        ]

    async def say() -> None:
        await guarded.registry.topics.create(TopicName.parse(topic))
        peer = await guarded.peer()
        await peer.greet(auth_method_name="token", auth_data=token(role).encode())

        async def told(name: str, namespace: str) -> list[str]:
            found = []
            for command in commands(name, namespace):
                peer.say(command)
                frame = await peer.frame()
                assert frame is not None
                found.append(str(frame.command).replace(name, "NAME").replace(namespace, "NAMESPACE"))
            return found

        there = await told(local, "public/default")
        assert await told(local.replace("t", "u", 1), "public/default") == there
        assert await told(local, "public/nowhere") == there
        assert await told(local, "nobody/default") == there

    guarded.call(say)


def test_a_watch_on_topic_names_ends_with_its_grant(guarded: Any, topic: str) -> None:
    namespace = NamespaceName.parse("public/default")
    grant(guarded, namespace, "watcher", Action.CONSUME)

    async def say() -> None:
        peer = await guarded.peer()
        await peer.greet(auth_method_name="token", auth_data=token("watcher").encode())
        peer.say(
            api.CommandWatchTopicList(
                request_id=1, watcher_id=5, namespace="public/default", topics_pattern=f"{topic}.*"
            )
        )
        await peer.hear(api.CommandWatchTopicListSuccess)
        await guarded.registry.grants.revoke(namespace, "watcher")
        await guarded.registry.topics.create(TopicName.parse(f"{topic}-secret"))
        for _ in range(10):  # the watch has had its turn by then
            peer.say(api.CommandPing())
            await peer.hear(api.CommandPong)
        await guarded.registry.grants.grant(namespace, "watcher", [Action.CONSUME])
        change = await peer.hear(api.CommandWatchTopicUpdate)
        assert list(change.new_topics) == [f"{topic}-secret"]

    guarded.call(say)


# --- TLS ------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of its own authority for this host, and its key."""
    made = make_certificate(tmp_path)
    return made.file, made.key_file


@pytest.mark.slow
def test_a_client_is_who_its_certificate_says(
    start_broker: Any, connect: Any, talk: Any, topic: str, tmp_path: Path
) -> None:
    issuer = make_certificate(tmp_path, "authority")
    authority, server = issuer.file, make_certificate(tmp_path, "localhost", issuer)
    node = start_broker(
        "listeners.pulsar_tls=127.0.0.1:0",
        "listeners.https=127.0.0.1:0",
        "listeners.advertised_host=localhost",
        f"tls.certificate={server.file}",
        f"tls.key={server.key_file}",
        f"tls.client_ca={authority}",
        *WITH_TOKENS,
    )
    grant(node, TopicName.parse(topic), "alice", Action.PRODUCE, Action.CONSUME)
    url = f"pulsar+ssl://localhost:{node.up.addresses['pulsar_tls'].port}"

    def as_holder(of: Certificate, **more: Any) -> pulsar.Client:
        shown = pulsar.AuthenticationTLS(str(of.file), str(of.key_file))
        return connect(node, url=url, tls_trust_certs_file_path=str(authority), authentication=shown, **more)

    alice = make_certificate(tmp_path, "alice", issuer)
    consumer = as_holder(alice).subscribe(topic, "s")
    as_holder(alice).create_producer(topic).send(b"x")
    assert talk.receive(consumer, 1) == [b"x"]
    with pytest.raises(pulsar.AuthorizationError):
        as_holder(make_certificate(tmp_path, "bob", issuer)).create_producer(topic)
    stranger = make_certificate(tmp_path, "admin")  # the name of a superuser, by nobody's authority
    with pytest.raises(pulsar.PulsarException):
        pulsar.Client(
            url,
            operation_timeout_seconds=1,
            logger=quiet(),
            tls_trust_certs_file_path=str(authority),
            authentication=pulsar.AuthenticationTLS(str(stranger.file), str(stranger.key_file)),
        ).create_producer(topic)
    with pytest.raises(pulsar.PulsarException):  # in the clear nobody can show one
        pulsar.Client(
            node.url,
            operation_timeout_seconds=1,
            logger=quiet(),
            authentication=pulsar.AuthenticationTLS(str(alice.file), str(alice.key_file)),
        ).create_producer(topic)
    admin = make_certificate(tmp_path, "admin", issuer)
    assert [asked(node, authority, of) for of in (admin, alice)] == [200, 403]


def test_client_certificates_can_be_optional(start_broker: Any, connect: Any, topic: str, tmp_path: Path) -> None:
    """Who shows one is who it says; who shows none may come with a token; one of another authority is refused."""
    issuer = make_certificate(tmp_path, "authority")
    shown = make_certificate(tmp_path, "localhost", issuer)
    node = start_broker(
        "listeners.pulsar_tls=127.0.0.1:0",
        "listeners.https=127.0.0.1:0",
        "listeners.advertised_host=localhost",
        f"tls.certificate={shown.file}",
        f"tls.key={shown.key_file}",
        f"tls.client_ca={issuer.file}",
        "tls.client_auth=optional",
        *WITH_TOKENS,
    )
    url = f"pulsar+ssl://localhost:{node.up.addresses['pulsar_tls'].port}"
    with_token = pulsar.AuthenticationToken(token("admin"))
    by_token = connect(node, url=url, tls_trust_certs_file_path=str(issuer.file), authentication=with_token)
    by_token.create_producer(topic).send(b"x")
    admin = make_certificate(tmp_path, "admin", issuer)
    assert [asked(node, issuer.file, of) for of in (admin, None)] == [200, 401]
    with pytest.raises(OSError):
        asked(node, issuer.file, make_certificate(tmp_path, "admin"))


def asked(node: Any, authority: Path, of: Certificate | None) -> int:
    """The status that the holder of a certificate gets for something that only superusers may ask."""
    context = ssl.create_default_context(cafile=str(authority))
    if of is not None:
        context.load_cert_chain(of.file, of.key_file)
    connection = http.client.HTTPSConnection(
        "localhost", node.up.addresses["https"].port, timeout=60, context=context
    )
    connection.request("GET", "/admin/v2/tenants")
    status = connection.getresponse().status
    connection.close()
    return status


def test_over_tls(start_broker: Any, connect: Any, talk: Any, topic: str, certificate: tuple[Path, Path]) -> None:
    chain, key = certificate
    node = start_broker(
        "listeners.pulsar_tls=127.0.0.1:0",
        f"tls.certificate={chain}",
        f"tls.key={key}",
        "listeners.advertised_host=localhost",
    )
    url = f"pulsar+ssl://localhost:{node.up.addresses['pulsar_tls'].port}"
    client = connect(node, url=url, tls_trust_certs_file_path=str(chain), tls_validate_hostname=True)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=True)
    talk.send(producer, talk.numbered(200, 1000))
    assert talk.receive(consumer, 200) == talk.numbered(200, 1000)
    plain = connect(node).subscribe(topic, "other", initial_position=pulsar.InitialPosition.Earliest)
    assert talk.receive(plain, 200) == talk.numbered(200, 1000)
    assert len(node.up.pulsar_servers["pulsar_tls"].sessions) == 1


def test_a_client_that_does_not_trust_the_certificate(
    start_broker: Any, connect: Any, topic: str, certificate: tuple[Path, Path]
) -> None:
    chain, key = certificate
    node = start_broker("listeners.pulsar_tls=127.0.0.1:0", f"tls.certificate={chain}", f"tls.key={key}")
    url = node.up.pulsar_servers["pulsar_tls"].service_url
    client = pulsar.Client(url, operation_timeout_seconds=1, logger=quiet())
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    client.close()
    connect(node).create_producer(topic).send(b"others are served")


def test_an_unknown_way_to_authenticate_is_refused_by_its_name(guarded: Any) -> None:
    async def say() -> str:
        peer = await guarded.peer()
        peer.say(
            api.CommandConnect(client_version="x", protocol_version=21, auth_method_name="sasl", auth_data=b"x")
        )
        frame = await peer.frame()
        assert frame is not None
        return str(frame.command)

    said = guarded.call(say)
    assert "AuthenticationError" in said
    assert "sasl" in said
