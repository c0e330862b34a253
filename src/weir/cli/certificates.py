"""A private certificate authority in a folder, and the server, client and node certificates that it signs.

Only its owner can read a key file, from the moment the file exists. No file is ever overwritten, except a
renewed certificate: the new one, with the same key, replaces the old file as a whole.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID as Usage
from cryptography.x509.oid import NameOID

from weir.model.errors import ConfigError

#: Allowance for client clocks that are behind.
_SKEW = timedelta(hours=1)


class Purpose(Enum):
    """The use of a certificate."""

    SERVER = (Usage.SERVER_AUTH,)
    CLIENT = (Usage.CLIENT_AUTH,)
    #: A node is a client and a server of other nodes.
    NODE = (Usage.SERVER_AUTH, Usage.CLIENT_AUTH)


@dataclass(frozen=True, slots=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path

    @classmethod
    def named(cls, folder: Path, name: str) -> "Pair":
        return cls(folder / f"{name}.pem", folder / f"{name}.key")

    @property
    def exists(self) -> bool:
        return self.certificate.exists() or self.key.exists()

    def check_new(self) -> None:
        """ConfigError if one of the files exists already."""
        for path in (self.certificate, self.key):
            if path.exists():
                raise ConfigError(f"{path} exists", hint="nothing is overwritten; choose another name or folder")


@dataclass(frozen=True, slots=True)
class Described:
    """The contents of a certificate."""

    name: str
    issuer: str
    hosts: tuple[str, ...]
    begins: datetime
    ends: datetime


class Authority:
    """The signing certificate and its key, in separate files."""

    def __init__(self, files: Pair) -> None:
        self.files = files
        self._certificate = load_certificate(files.certificate)
        self._key = _load_key(files.key)

    @classmethod
    def create(cls, files: Pair, name: str, days: int) -> "Authority":
        files.check_new()
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        made = _begun(subject, subject, key.public_key(), key.public_key(), days)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        made = made.add_extension(_key_usage(authority=True), critical=True)
        _write(files, made.sign(key, hashes.SHA256()), key)
        return cls(files)

    def sign(self, files: Pair, name: str, hosts: Sequence[str], purpose: Purpose, days: int) -> None:
        """Create a key and a certificate for it."""
        files.check_new()
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._begun(_name(name), key.public_key(), days)
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        made = made.add_extension(_key_usage(authority=False), critical=True)
        made = made.add_extension(x509.ExtendedKeyUsage(purpose.value), critical=False)
        if hosts:
            made = made.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        _write(files, made.sign(self._key, hashes.SHA256()), key)

    def renew(self, file: Path, days: int) -> None:
        """Replace a certificate by one with the same name, hosts, purpose and key, and a later end."""
        old = load_certificate(file)
        if old.issuer != self._certificate.subject:
            raise ConfigError(
                f"{file} was not signed by {self.files.certificate}",
                hint="renew it with the authority that signed it",
            )
        key = old.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ConfigError(f"{file} was not made by weir tls", hint="renew it with the tool that made it")
        made = self._begun(old.subject, key, days)
        for kind in (x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage, x509.SubjectAlternativeName):
            try:
                kept = old.extensions.get_extension_for_class(kind)
            except x509.ExtensionNotFound:
                continue
            made = made.add_extension(kept.value, critical=kept.critical)
        new = file.with_suffix(".new")
        new.unlink(missing_ok=True)
        _write_new(new, made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM), 0o644)
        os.replace(new, file)

    def _begun(self, name: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
        return _begun(name, self._certificate.subject, key, self._key.public_key(), days)


def describe(file: Path) -> Described:
    found = load_certificate(file)
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = tuple(str(name.value) for name in names)
    except x509.ExtensionNotFound:
        hosts = ()
    return Described(
        _common_name(found.subject),
        _common_name(found.issuer),
        hosts,
        found.not_valid_before_utc,
        found.not_valid_after_utc,
    )


def load_certificate(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except OSError as failure:
        raise ConfigError(f"{file} cannot be read: {failure.strerror}", hint="weir tls init makes it") from None
    except ValueError:
        raise ConfigError(f"{file} is not a certificate in PEM form") from None


def _load_key(file: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except OSError as failure:
        raise ConfigError(
            f"{file} cannot be read: {failure.strerror}", hint="signing needs the authority's key"
        ) from None
    except (ValueError, TypeError):
        raise ConfigError(f"{file} is not a private key in PEM form") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{file} was not made by weir tls", hint="sign with the tool that made it")
    return key


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePublicKey,
    days: int,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _write(files: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    files.key.parent.mkdir(parents=True, exist_ok=True)
    _write_new(files.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    _write_new(files.certificate, certificate.public_bytes(Encoding.PEM), 0o644)


def _write_new(file: Path, data: bytes, mode: int) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as failure:
        raise ConfigError(f"{file} cannot be written: {failure.strerror}") from None
    with open(descriptor, "wb") as out:
        out.write(data)


def _name(name: str) -> x509.Name:
    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    except ValueError:
        raise ConfigError(f"{name!r} is no name for a certificate", hint="it has 1 to 64 characters") from None


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError(f"{host!r} is no host", hint="names are written in ASCII, as in the DNS") from None


def _common_name(name: x509.Name) -> str:
    return ", ".join(str(part.value) for part in name.get_attributes_for_oid(NameOID.COMMON_NAME))


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
