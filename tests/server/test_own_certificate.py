"""TLS and clear text on RocketMQ's one port, with a certificate that the broker makes for itself."""

import asyncio
import ssl
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from weir.runtime.real import real_runtime
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load
from weir.testing.certificates import make_certificate

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
SETTINGS = 4
MakeWeir = Callable[..., BrokerNode]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[MakeWeir]:
    nodes: list[BrokerNode] = []

    def new(*settings: str) -> BrokerNode:
        listeners = [f"listeners.{name}=" for name in ("pulsar", "kafka", "amqp", "http")]
        common = ["storage.low_water_bytes=0", "storage.high_water_bytes=0", f"data={tmp_path}/data"]
        assignments = [*listeners, "listeners.rocketmq=127.0.0.1:0", *common, *settings]
        nodes.append(BrokerNode(real_runtime(), load(assignments=assignments).config))
        return nodes[-1]

    yield new
    for node in nodes:
        await node.close()


def trusting_anybody() -> ssl.SSLContext:
    """As RocketMQ's clients of Java and Go make it by default."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


async def greeted(node: BrokerNode, tls: ssl.SSLContext | None) -> tuple[str | None, bytes]:
    """What ALPN chose, and the server's certificate, of a connection on which HTTP/2 is answered."""
    address = node.addresses["rocketmq"]
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
        writer.write(PREFACE)
        frame = await reader.readexactly(9)
    assert frame[3] == SETTINGS
    secured = writer.get_extra_info("ssl_object")
    writer.close()
    with suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()
    return (None, b"") if secured is None else (secured.selected_alpn_protocol(), secured.getpeercert(True))


async def test_one_port_serves_tls_and_clear_text(make: MakeWeir, tmp_path: Path) -> None:
    node = make()
    await node.start()
    chosen, certificate = await greeted(node, trusting_anybody())
    assert chosen == "h2"
    assert await greeted(node, None) == (None, b"")
    file = tmp_path / "data" / "tls" / "rocketmq.pem"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert ssl.PEM_cert_to_DER_cert(file.read_text().partition("-----END PRIVATE KEY-----\n")[2]) == certificate
    await greeted(node, ssl.create_default_context(cafile=str(file)))  # whoever is given it can trust it


async def test_the_certificate_outlasts_a_restart(make: MakeWeir) -> None:
    first = make()
    await first.start()
    before = await greeted(first, trusting_anybody())
    await first.close()
    second = make()
    await second.start()
    assert await greeted(second, trusting_anybody()) == before


async def test_a_certificate_that_cannot_be_read_is_replaced(
    make: MakeWeir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "data" / "tls" / "rocketmq.pem"
    file.parent.mkdir(parents=True)
    file.write_text("-----BEGIN PRIVATE KEY-----\nAAAA")
    node = make()
    await node.start()
    await greeted(node, trusting_anybody())
    assert f"{file} cannot be used" in caplog.text
    assert "BEGIN CERTIFICATE" in file.read_text()


async def test_a_configured_certificate_serves_instead(make: MakeWeir, tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    authority = f"tls.client_ca={made.file}"  # asked for, not demanded: clear text is served beside it
    node = make(f"tls.certificate={made.file}", f"tls.key={made.key_file}", authority)
    await node.start()
    _, certificate = await greeted(node, trusting_anybody())
    assert certificate == ssl.PEM_cert_to_DER_cert(made.file.read_text())
    await greeted(node, None)
    assert not (tmp_path / "data" / "tls").exists()


async def test_a_client_that_sends_nothing_is_ended_and_holds_no_session(
    make: MakeWeir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.runtime.real_net._FIRST_BYTE_S", 0.2)
    node = make()
    await node.start()
    address = node.addresses["rocketmq"]
    reader, writer = await asyncio.open_connection(address.host, address.port)
    async with asyncio.timeout(60):
        with suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
    assert node.rocketmq_servers["rocketmq"].sessions == []


async def test_of_too_many_silent_clients_the_oldest_is_ended(
    make: MakeWeir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.runtime.real_net._MAX_SILENT", 3)
    monkeypatch.setattr("weir.runtime.real_net._FIRST_BYTE_S", 1000.0)
    node = make()
    await node.start()
    address = node.addresses["rocketmq"]
    silent = [await asyncio.open_connection(address.host, address.port) for _ in range(6)]
    async with asyncio.timeout(60):
        for reader, _ in silent[:3]:
            with suppress(ConnectionError):
                assert await reader.read() == b""
    for tls in (None, trusting_anybody()):
        await greeted(node, tls)
    for reader, writer in silent[4:]:
        assert not reader.at_eof()
        writer.close()


async def test_closing_does_not_wait_for_silent_clients(make: MakeWeir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.runtime.real_net._FIRST_BYTE_S", 1000.0)
    node = make()
    await node.start()
    address = node.addresses["rocketmq"]
    reader, writer = await asyncio.open_connection(address.host, address.port)
    await greeted(node, None)
    async with asyncio.timeout(60):
        await node.close()
        with suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()
