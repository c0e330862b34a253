"""Everything in one process, in the test's own loop: started in order, undone when it fails, ended in order."""

import asyncio
import base64
import re
import ssl
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import confluent_kafka as kafka
import confluent_kafka.admin
import pytest

from weir.broker.peers.peer_calls import PeerHandlers
from weir.broker.peers.peer_client import PeerPool
from weir.broker.security.cluster_credentials import ClusterCredentialSettings, load_credentials
from weir.broker.security.tokens import create_secret, create_token
from weir.client.access import ClientSettings
from weir.client.admin import AdminClient
from weir.client.pulsar.client import PulsarClient
from weir.client.pulsar.consumer import Subscribing
from weir.client.pulsar.messages import Outgoing
from weir.model.errors import (
    AddressInUseError,
    BookieCookieError,
    ConfigError,
    ConnectFailedError,
    FileLockedError,
    NotAuthenticatedError,
    NotAuthorisedError,
    PeerUnavailableError,
    TopicNotFoundError,
    WeirError,
)
from weir.model.topics import TopicName
from weir.runtime.interfaces import Runtime
from weir.runtime.real import real_runtime
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load
from weir.server.config.tree import Config
from weir.testing.certificates import make_certificate
from weir.wire.peer.calls import AdminCall, Done, Ping

MakeWeir = Callable[..., BrokerNode]


@pytest.fixture
def runtime() -> Runtime:
    return real_runtime()


def config(folder: Path, *settings: str) -> Config:
    listeners = [f"listeners.{name}=127.0.0.1:0" for name in ("pulsar", "kafka", "amqp", "rocketmq", "http")]
    common = [*listeners, f"data={folder}/data"]
    return load(assignments=[*common, "storage.low_water_bytes=0", "storage.high_water_bytes=0", *settings]).config


@pytest.fixture
async def make(runtime: Runtime, tmp_path: Path) -> AsyncIterator[MakeWeir]:
    nodes: list[BrokerNode] = []

    def new(*settings: str, folder: Path = tmp_path) -> BrokerNode:
        nodes.append(BrokerNode(runtime, config(folder, *settings)))
        return nodes[-1]

    yield new
    for node in nodes:
        await node.close()


def url(node: BrokerNode, name: str = "pulsar") -> str:
    return f"{'pulsar+ssl' if name == 'pulsar_tls' else 'pulsar'}://{node.addresses[name]}"


async def exchange(client: PulsarClient, topic: str = "t") -> None:
    """A message there and back."""
    at = await (await client.producer(topic)).send(Outgoing(b"x"))
    consumer = await client.consumer(topic, Subscribing("s", earliest=True))
    async with asyncio.timeout(60):
        message = await consumer.receive()
    assert message is not None
    assert message.id == at
    await consumer.ack(message)


async def test_a_folder_has_one_user_at_a_time(make: MakeWeir) -> None:
    first, second = make(), make()
    await first.start()
    with pytest.raises(FileLockedError, match="another `weir up` runs on"):
        await second.start()
    await first.close()
    third = make()
    await third.start()


async def cluster_id_of(node: BrokerNode) -> str:
    """As Kafka's own client is told."""

    def ask() -> str:
        admin = kafka.admin.AdminClient({"bootstrap.servers": str(node.addresses["kafka"])})
        return str(admin.describe_cluster(request_timeout=60).result().cluster_id)

    return await asyncio.to_thread(ask)


async def test_every_installation_has_its_own_cluster_id_for_good(
    make: MakeWeir, runtime: Runtime, tmp_path: Path
) -> None:
    first, other = make(), make(folder=tmp_path / "other")
    await first.start()
    await other.start()
    found = await cluster_id_of(first)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", found)
    assert uuid.UUID(bytes=base64.urlsafe_b64decode(found + "==")).version == 4
    assert found != await cluster_id_of(other)
    await first.close()
    again = make()
    await again.start()
    assert await cluster_id_of(again) == found


async def test_what_a_failed_start_had_taken_is_free_again(make: MakeWeir, tmp_path: Path) -> None:
    first = make()
    await first.start()
    port = first.addresses["pulsar"].port
    await first.close()
    disk, aside = tmp_path / "data" / "bookie", tmp_path / "aside"
    disk.rename(aside)
    broken = make(f"listeners.pulsar=127.0.0.1:{port}")
    with pytest.raises(BookieCookieError):
        await broken.start()
    disk.rename(tmp_path / "wrong")
    aside.rename(disk)
    again = make(f"listeners.pulsar=127.0.0.1:{port}")
    await again.start()  # neither the port nor the folder is still taken


async def test_a_taken_port_is_found_before_the_folder_is_made(make: MakeWeir, tmp_path: Path) -> None:
    first = make()
    await first.start()
    second = make(f"listeners.pulsar={first.addresses['pulsar']}", folder=tmp_path / "other")
    with pytest.raises(AddressInUseError):
        await second.start()
    assert not (tmp_path / "other").exists()


async def test_a_namespace_has_as_many_topics_as_is_configured(make: MakeWeir, runtime: Runtime) -> None:
    node = make("limits.topics=1")
    await node.start()
    async with PulsarClient(runtime, url(node)) as client:
        await exchange(client, "one")
        with pytest.raises(WeirError, match="reached its limit of"):
            await client.producer("another")


async def test_closing_twice_is_fine(make: MakeWeir) -> None:
    node = make()
    await node.start()
    await node.close()
    await node.close()


async def test_a_listener_may_be_left_out(make: MakeWeir) -> None:
    node = make("listeners.pulsar=")
    await node.start()
    assert "pulsar" not in node.addresses


async def test_clients_are_told_the_advertised_host(make: MakeWeir, runtime: Runtime) -> None:
    node = make("listeners.advertised_host=localhost")
    await node.start()
    async with PulsarClient(runtime, url(node)) as client:
        await exchange(client)
        connected = [str(url) for url in client._connections]
    assert connected[-1] == f"pulsar://localhost:{node.addresses['pulsar'].port}"


async def test_default_policies_come_from_the_configuration(make: MakeWeir, runtime: Runtime) -> None:
    node = make("defaults.auto_create_topics=false")
    await node.start()
    async with PulsarClient(runtime, url(node)) as client:
        with pytest.raises(TopicNotFoundError):
            await client.producer("t")


async def test_tls_serves_beside_the_plain_listener(make: MakeWeir, runtime: Runtime, tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    certificate, key = made.file, made.key_file
    node = make("listeners.pulsar_tls=127.0.0.1:0", f"tls.certificate={certificate}", f"tls.key={key}")
    await node.start()
    trusting = ssl.create_default_context(cafile=certificate)
    async with PulsarClient(runtime, url(node, "pulsar_tls"), ClientSettings(tls=trusting)) as client:
        await exchange(client)
    async with PulsarClient(runtime, url(node)) as client:
        await exchange(client, "other")
    suspicious = ssl.create_default_context()
    async with PulsarClient(runtime, url(node, "pulsar_tls"), ClientSettings(tls=suspicious)) as client:
        with pytest.raises(ConnectFailedError, match="TLS"):
            await client.producer("t")


async def test_a_tls_handshake_that_never_ends_is_ended(
    make: MakeWeir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.runtime.real_net._HANDSHAKE_S", 0.2)
    made = make_certificate(tmp_path)
    certificate, key = made.file, made.key_file
    node = make("listeners.kafka_tls=127.0.0.1:0", f"tls.certificate={certificate}", f"tls.key={key}")
    await node.start()
    address = node.addresses["kafka_tls"]
    for beginning in (b"", b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n"):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(beginning)
        async with asyncio.timeout(30):
            with suppress(ConnectionError):
                await reader.read()  # perhaps an alert, and then the end
        writer.close()


async def test_a_broker_of_the_cluster_reaches_it_by_its_listener_for_brokers(
    make: MakeWeir, runtime: Runtime, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("a secret that is longer than thirty-two bytes\n")
    secret = f"file:{tmp_path}/secret"
    node = make("listeners.peer=127.0.0.1:0", f"cluster.secret={secret}")
    await node.start()
    (registered,) = node.composed.broker.brokers()
    assert registered.listeners["peer"] == str(node.addresses["peer"])
    shown = await load_credentials(runtime.disk, ClusterCredentialSettings(secret))
    pool = PeerPool(runtime, "other", PeerHandlers(), lambda: [registered], credentials=shown)
    stranger = PeerPool(runtime, "other", PeerHandlers(), lambda: [registered])
    try:
        assert await pool.ask(registered.broker_id, Ping()) == Done()
        answer = await pool.ask(registered.broker_id, AdminCall("admin", "GET", "/admin/v2/tenants"))
        assert (answer.status, b"public" in answer.body) == (200, True)
        with pytest.raises(PeerUnavailableError):
            await stranger.ask(registered.broker_id, Ping())
    finally:
        await pool.close()
        await stranger.close()
    seen = node.composed.peer_metrics
    assert (seen.served.outcomes, seen.strangers) == ({("ping", ""): 1, ("admin", ""): 1}, 1)


async def test_a_listener_for_brokers_without_credentials_is_refused(make: MakeWeir) -> None:
    with pytest.raises(ConfigError, match="credentials") as refused:
        await make("listeners.peer=127.0.0.1:0").start()
    assert "cluster.secret" in refused.value.hint


async def test_the_admin_rest_is_served_in_the_clear_and_over_tls(
    make: MakeWeir, runtime: Runtime, tmp_path: Path
) -> None:
    made = make_certificate(tmp_path)
    certificate, key = made.file, made.key_file
    node = make("listeners.https=127.0.0.1:0", f"tls.certificate={certificate}", f"tls.key={key}")
    await node.start()
    trusting = ClientSettings(tls=ssl.create_default_context(cafile=certificate))
    for scheme in ("http", "https"):
        async with AdminClient(runtime, f"{scheme}://{node.addresses[scheme]}", trusting) as admin:
            assert await admin.get("clusters") == ["standalone"]
            where = await admin.broker_url(TopicName.parse("t"), secure=False)
    assert where == f"pulsar://{node.addresses['pulsar']}"


async def test_tokens_and_grants_hold_on_every_listener(make: MakeWeir, runtime: Runtime) -> None:
    secret = create_secret()
    node = make(
        "auth.authenticate=true",
        "auth.authorise=true",
        "auth.superusers=root",
        f"auth.token_secret={base64.urlsafe_b64encode(secret).decode()}",
    )
    await node.start()
    http = f"http://{node.addresses['http']}"
    root, alice = (ClientSettings(token=create_token(secret, role)) for role in ("root", "alice"))
    async with AdminClient(runtime, http) as nobody:
        with pytest.raises(NotAuthenticatedError):
            await nobody.get("tenants")
    async with AdminClient(runtime, http, alice) as admin:
        with pytest.raises(NotAuthorisedError):
            await admin.put("tenants/acme", {"adminRoles": [], "allowedClusters": ["standalone"]})
    async with PulsarClient(runtime, url(node), alice) as client:
        with pytest.raises(NotAuthorisedError):
            await client.producer("t")
    async with AdminClient(runtime, http, root) as admin:
        await admin.post("namespaces/public/default/permissions/alice", ["produce", "consume"])
    async with PulsarClient(runtime, url(node), alice) as client:
        await exchange(client)


@pytest.mark.parametrize(
    "settings",
    [
        ["listeners.pulsar_tls=127.0.0.1:0"],
        ["listeners.pulsar_tls=127.0.0.1:0", "tls.certificate=/none", "tls.key=/none"],
        ["auth.token_secret=c2hvcnQ="],
        ["auth.token_secret=file:/none"],
        ["auth.token_public_key=c2hvcnQ="],
        ["auth.token_secret=x", "auth.token_public_key=y"],
    ],
)
async def test_settings_that_do_not_fit_together_are_refused_before_anything_is_made(
    settings: list[str], make: MakeWeir, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError):
        await make(*settings).start()
    assert not (tmp_path / "data").exists()


def test_water_marks_the_wrong_way_round_are_refused(runtime: Runtime, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="low_water"):
        BrokerNode(runtime, config(tmp_path, "storage.low_water_bytes=2", "storage.high_water_bytes=1"))
