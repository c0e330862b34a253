"""Whom Weir's own clients trust does not depend on the interpreter; what one end does not take is told at once."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from weir.client.access import Refusals, trusting
from weir.client.admin import Access, ask
from weir.client.kafka.cluster import Cluster
from weir.client.kafka.settings import Address, KafkaSettings, TlsFiles
from weir.model.errors import (
    ConnectFailedError,
    ConnectionLostError,
    TlsFailedError,
    TlsRefusedError,
    WeirError,
)
from weir.runtime.real import real_runtime
from weir.testing.certificates import Certificate, make_certificate


async def greeting(server: Certificate, client: ssl.SSLContext) -> bytes:
    """What comes over TLS from a server with this certificate."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(server.file, server.key_file)
    net = real_runtime().net
    listener = await net.listen("127.0.0.1", 0, tls=serving)
    try:
        connection = await net.connect("127.0.0.1", listener.port, tls=client)
        accepted = await listener.accept()
        accepted.write([b"hello"])
        accepted.close()
        came = bytes(await connection.receive())
        connection.close()
        return came
    finally:
        listener.close()


@pytest.mark.parametrize("context", [trusting, lambda ca: TlsFiles(ca=ca).context()], ids=["admin", "kafka"])
@pytest.mark.parametrize("key_ids", [True, False])
async def test_a_certificate_without_an_authority_key_id_is_trusted_like_any_other_of_the_named_authority(
    tmp_path: Path, context: Callable[[str | None], ssl.SSLContext], key_ids: bool
) -> None:
    authority = make_certificate(tmp_path, "authority", key_ids=key_ids)
    server = make_certificate(tmp_path, "server", authority, key_ids=key_ids)
    assert await greeting(server, context(str(authority.file))) == b"hello"
    with pytest.raises(ConnectFailedError, match="CERTIFICATE"):
        await greeting(server, context(None))


async def test_a_certificate_that_is_named_is_trusted_whoever_signed_it(tmp_path: Path) -> None:
    server = make_certificate(tmp_path, "server", make_certificate(tmp_path, "authority"))
    other = make_certificate(tmp_path, "other", make_certificate(tmp_path, "another"))
    assert await greeting(server, trusting(str(server.file))) == b"hello"
    with pytest.raises(ConnectFailedError, match="CERTIFICATE"):
        await greeting(server, trusting(str(other.file)))


#: Longer than a test may take: whoever waits for it fails.
_FOR_EVER_S = 3600.0


@asynccontextmanager
async def asking_for_certificates(server: Certificate) -> AsyncIterator[int]:
    """The port of a server that takes only clients with certificates of its own authority."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(server.file, server.key_file)
    serving.load_verify_locations(server.file)
    serving.verify_mode = ssl.CERT_REQUIRED
    listener = await real_runtime().net.listen("127.0.0.1", 0, tls=serving)
    try:
        yield listener.port
    finally:
        listener.close()


def ask_rest(port: int, ca: str | None) -> None:
    ask(Access(f"https://127.0.0.1:{port}", None, ca, _FOR_EVER_S), "GET", "addresses")


def ask_kafka(port: int, ca: str | None) -> None:
    settings = KafkaSettings((Address("127.0.0.1", port),), tls=TlsFiles(ca), retry_for_s=_FOR_EVER_S)
    with Cluster(settings) as cluster:
        cluster.topics()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ask_it", [ask_rest, ask_kafka])
async def test_a_certificate_that_either_end_does_not_take_is_told_at_once_however_patient_the_client_is(
    tmp_path: Path, ask_it: Callable[[int, str | None], None]
) -> None:
    server = make_certificate(tmp_path, "server")
    async with asking_for_certificates(server) as port:
        with pytest.raises(TlsRefusedError, match="give one of an authority that it trusts"):
            await asyncio.to_thread(ask_it, port, str(server.file))
        with pytest.raises(TlsFailedError, match="check certificate and CA"):
            await asyncio.to_thread(ask_it, port, None)


def test_a_server_that_goes_away_in_a_handshake_or_one_of_several_is_waited_for() -> None:
    refused, failed, away = TlsRefusedError("r"), TlsFailedError("f"), ConnectFailedError("a")

    def told(servers: int, *failures: WeirError) -> list[bool]:
        refusals = Refusals(servers)
        return [refusals.final(one) for one in failures]

    assert told(1, ConnectionLostError("l"), away, away) == [False, False, False]
    assert told(1, refused, refused, away, refused, refused, refused) == [False] * 5 + [True]
    assert told(1, failed) == [True]
    assert told(2, failed, away, failed, failed) == [False, False, False, True]
