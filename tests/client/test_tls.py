"""Whom Weir's own clients trust does not depend on the interpreter."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from weir.client.kafka.settings import TlsFiles
from weir.client.tls import trusting
from weir.model.errors import ConnectFailedError
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
