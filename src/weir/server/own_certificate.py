"""The self-signed certificate of a broker without a configured one.

RocketMQ clients use TLS by default and do not verify the certificate, so a self-signed one suffices. A broker with
a data folder keeps it there, in one file that only its user can read, so that clients can be configured to trust
it. Brokers without a data folder share one in the metadata.
"""

import asyncio
import logging
import os
import secrets
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from weir.meta import keys
from weir.meta.interfaces import ABSENT, MetaStore
from weir.model.errors import MetaConflictError

log = logging.getLogger(__name__)

_FILE = "rocketmq.pem"
_HOSTS = ("localhost", "127.0.0.1", "::1")
_YEARS = 20
#: Allowance for client clocks that are behind.
_SKEW = timedelta(hours=1)


class OwnCertificate:
    """Creates, stores and serves the certificate. Call `context` first, and `keep` once storage is open."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: where the certificate is stored; None: in the metadata."""
        self._file = None if folder is None else folder / _FILE
        self._context: _LateContext | None = None
        self._made: bytes | None = None

    @property
    def used(self) -> bool:
        return self._context is not None

    async def context(self) -> ssl.SSLContext:
        """A context for an HTTP/2 server. With the certificate in the metadata, it serves from `keep` on; earlier
        connections are closed."""
        self._context = _LateContext(ssl.PROTOCOL_TLS_SERVER)
        if self._file is not None and not await asyncio.to_thread(self._load):
            self._made = await asyncio.to_thread(_make)
            self._context.serve(_context_of(self._made))
        return self._context

    async def keep(self, meta: MetaStore) -> None:
        """Store a new certificate; use that of the other brokers if one exists."""
        if self._file is None:
            await self._share(meta)
        elif self._made is not None:
            try:
                await asyncio.to_thread(_write, self._file, self._made)
            except OSError as failure:
                log.warning(
                    "certificate for RocketMQ's clients not stored as %s (%s): the next start makes another",
                    self._file,
                    failure.strerror or failure,
                )
            else:
                log.info("created a certificate for RocketMQ clients: %s", self._file)

    def _load(self) -> bool:
        """Use the certificate in the file, if it exists and is valid."""
        assert self._file is not None
        assert self._context is not None
        try:
            self._context.serve(_context_from(str(self._file)))
        except FileNotFoundError:
            return False
        except (OSError, ssl.SSLError) as failure:
            log.warning("%s cannot be used (%s): a new certificate replaces it", self._file, failure)
            return False
        return True

    async def _share(self, meta: MetaStore) -> None:
        assert self._context is not None
        found = await meta.get(keys.OWN_CERTIFICATE)
        if found is None:
            made = await asyncio.to_thread(_make)
            with suppress(MetaConflictError):  # another broker was faster
                await meta.put(keys.OWN_CERTIFICATE, made, expect=ABSENT)
            found = await meta.get(keys.OWN_CERTIFICATE)
        if found is not None:
            self._context.serve(await asyncio.to_thread(_context_of, found.value))


class _LateContext(ssl.SSLContext):
    """A context that gets its certificate after listening has begun."""

    _now: ssl.SSLContext | None = None

    def serve(self, context: ssl.SSLContext) -> None:
        self._now = context

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Called by asyncio and uvloop for each connection."""
        if self._now is None:
            raise ssl.SSLError("the certificate is not read yet")
        return self._now.wrap_bio(*args, **options)


def _context_from(file: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(file)
    return context


def _context_of(pem: bytes) -> ssl.SSLContext:
    """OpenSSL reads keys from files only."""
    with TemporaryDirectory(prefix="weir-tls-") as folder:
        file = os.path.join(folder, _FILE)
        _write_new(file, pem)
        return _context_from(file)


def _write(file: Path, pem: bytes) -> None:
    """Replace the whole file; only Weir's user can read it, from the moment it exists."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    new = f"{file}.{secrets.token_hex(8)}.new"
    try:
        _write_new(new, pem)
        os.replace(new, file)
    except OSError:
        with suppress(OSError):
            os.unlink(new)
        raise


def _write_new(file: str, content: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())


def _make() -> bytes:
    """A key and a self-signed certificate for this machine; both as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Weir")])
    now = datetime.now(UTC)
    hosts = [_host(x509, host) for host in dict.fromkeys([*_HOSTS, *_host_names()])]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=365 * _YEARS))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + made.public_bytes(Encoding.PEM)


def _host_names() -> list[str]:
    """This machine's name, if a certificate can contain it."""
    name = socket.gethostname()
    return [name] if name and len(name) < 254 and name.isascii() else []


def _host(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
