"""Certificates for tests: for this machine, of their own authority or of another's."""

import datetime
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """Where a certificate and its key are, and both themselves, to sign others with."""

    file: Path
    key_file: Path
    name: x509.Name
    key: ec.EllipticCurvePrivateKey


def make_certificate(
    folder: Path, name: str = "localhost", issuer: Certificate | None = None, *, key_ids: bool = True
) -> Certificate:
    """For `localhost` and 127.0.0.1, with this common name; as RFC 5280 wants it, or without the ids of keys."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer, signing = (subject, key) if issuer is None else (issuer.name, issuer.key)
    now = datetime.datetime.now(datetime.UTC)
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if key_ids:
        owner = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
        made = made.add_extension(owner, critical=False).add_extension(authority, critical=False)
        made = made.add_extension(_usage(authority=issuer is None), critical=True)
    file, key_file = folder / f"{name}.pem", folder / f"{name}-key.pem"
    file.write_bytes(made.sign(signing, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form, unprotected = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, unprotected))
    return Certificate(file, key_file, subject, key)


def _usage(*, authority: bool) -> x509.KeyUsage:
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
