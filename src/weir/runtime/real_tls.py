"""TLS contexts that follow their files: a renewed certificate serves from the next connection on.

Errors name the setting of the file. `FileContext` checks the files at each new connection (this costs less than a
hundredth of its handshake); if it cannot use new files, it keeps the old ones and logs the reason."""

import logging
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from weir.model.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

log = logging.getLogger(__name__)

#: How long before the expiry of a certificate Weir warns.
_SOON = timedelta(days=14)
_RENEW = "make a new one: weir tls renew, or get one from its issuer"
_MAKE = "weir tls init makes certificates"

Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A certificate with its chain and key, and the authority of the clients, if they must present certificates.
    `settings`: the names of the three in the configuration."""

    certificate: str
    key: str
    authority: str = ""
    settings: tuple[str, str, str] = ("tls.certificate", "tls.key", "tls.client_ca")

    def check(self) -> None:
        """Raise ConfigError for the first problem, with a hint."""
        chain = _certificates(self.settings[0], self.certificate)
        key = _key(self.settings[1], self.key)
        if _public(chain[0].public_key()) != _public(key.public_key()):
            raise ConfigError(
                f"{self.settings[1]} {self.key} is not the key of the certificate {self.certificate}",
                hint=f"set {self.settings[0]} and {self.settings[1]} to the two files of one certificate",
            )
        if self.authority:
            _certificates(self.settings[2], self.authority)

    def warnings(self, now: datetime) -> list[str]:
        """Reasons why clients refuse the certificates, or soon will. The files must be valid."""
        found = [(self.settings[0], self.certificate)]
        if self.authority:
            found.append((self.settings[2], self.authority))
        return [
            told for setting, path in found if (told := _age(setting, path, _certificates(setting, path)[0], now))
        ]

    def stamp(self) -> Stamp:
        """A value that changes when a file changes."""
        return tuple(_stamp_of(path) for path in (self.certificate, self.key, self.authority) if path)


class FileContext(ssl.SSLContext):
    """A context for one side of connections, which `make` builds from the files. Each connection gets the newest
    usable one."""

    _files: TlsFiles
    _make: Callable[[TlsFiles], ssl.SSLContext]
    _stamp: Stamp
    _now: ssl.SSLContext

    def __new__(cls, protocol: int, files: TlsFiles, make: Callable[[TlsFiles], ssl.SSLContext]) -> "FileContext":
        self = super().__new__(cls, protocol)
        self._files = files
        self._make = make
        self._stamp = files.stamp()
        self._now = _made(files, make)
        for told in files.warnings(datetime.now(UTC)):
            log.warning(told)
        _contexts.add(self)
        return self

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Called by asyncio and uvloop for each connection."""
        try:
            if self.look() is not None:
                log.info("the TLS files have changed: %s serves from now on", self._files.certificate)
        except ConfigError as wrong:
            log.warning("the TLS files have changed and are unusable; still serving the old ones: %s", wrong)
        return self._now.wrap_bio(*args, **options)

    def look(self) -> str | None:
        """Reload changed files. Returns the certificate's file, or None without a change; ConfigError, once, if
        the files are unusable: the next change triggers another attempt."""
        stamp = self._files.stamp()
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        self._now = _made(self._files, self._make)
        for told in self._files.warnings(datetime.now(UTC)):
            log.warning(told)
        return self._files.certificate


#: All contexts of this process.
_contexts: "WeakSet[FileContext]" = WeakSet()


def look_at_files() -> tuple[list[str], list[str]]:
    """Make every context check its files now. Returns the new certificates, and the problems of others."""
    renewed: dict[str, None] = {}
    wrong: dict[str, None] = {}
    for context in list(_contexts):
        try:
            if (file := context.look()) is not None:
                renewed[file] = None
        except ConfigError as problem:
            wrong[str(problem)] = None
    return list(renewed), list(wrong)


def _made(files: TlsFiles, make: Callable[[TlsFiles], ssl.SSLContext]) -> ssl.SSLContext:
    files.check()
    try:
        return make(files)
    except (OSError, ssl.SSLError) as failure:
        names = ", ".join(files.settings)
        raise ConfigError(f"the TLS files cannot be used: {failure}", hint=f"check {names}") from None


def _read(setting: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise ConfigError(
            f"{setting}: there is no file {path}", hint=f"name a file that is there; {_MAKE}"
        ) from None
    except IsADirectoryError:
        raise ConfigError(f"{setting}: {path} is a folder", hint="name the file in it") from None
    except PermissionError:
        raise ConfigError(
            f"{setting}: {path} may not be read by the user that runs Weir",
            hint=f"chown it to user id {os.geteuid()}",
        ) from None
    except OSError as failure:
        raise ConfigError(f"{setting}: {path} cannot be read: {failure.strerror}", hint="check the disk") from None


def _certificates(setting: str, path: str) -> "Sequence[Certificate]":
    from cryptography.x509 import load_pem_x509_certificates

    data = _read(setting, path)
    try:
        return load_pem_x509_certificates(data)
    except ValueError:
        if b"PRIVATE KEY-----" in data:
            what, hint = "a private key, and no certificate", "are certificate and key mixed up?"
        elif data[:1] == b"\x30":
            what, hint = "not in PEM, but in DER", f"openssl x509 -inform der -in {path} -out new.pem"
        else:
            what, hint = "no certificate in PEM", f"it begins with -----BEGIN CERTIFICATE-----; {_MAKE}"
        raise ConfigError(f"{setting}: {path} is {what}", hint=hint) from None


def _key(setting: str, path: str) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = _read(setting, path)
    try:
        return load_pem_private_key(data, None)
    except TypeError:
        raise ConfigError(
            f"{setting}: {path} is protected by a password, for which Weir cannot ask",
            hint=f"openssl pkey -in {path} -out plain.key, readable by Weir's user alone",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        if b"-----BEGIN CERTIFICATE" in data:
            what, hint = "a certificate, and no private key", "are certificate and key mixed up?"
        elif data[:1] == b"\x30":
            what, hint = "not in PEM, but in DER", f"openssl pkey -inform der -in {path} -out new.key"
        else:
            what, hint = "no private key in PEM", f"it begins with -----BEGIN PRIVATE KEY-----; {_MAKE}"
        raise ConfigError(f"{setting}: {path} is {what}", hint=hint) from None


def _public(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return bytes(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def _age(setting: str, path: str, certificate: "Certificate", now: datetime) -> str:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if ends <= now:
        return f"{setting}: {path} has expired at {ends:%Y-%m-%d %H:%M} UTC, and clients refuse it ({_RENEW})"
    if begins > now:
        return (
            f"{setting}: {path} is good only from {begins:%Y-%m-%d %H:%M} UTC on, here it is {now:%Y-%m-%d %H:%M}"
            " (check this machine's clock, or wait)"
        )
    if ends - now < _SOON:
        return (
            f"{setting}: {path} expires at {ends:%Y-%m-%d %H:%M} UTC ({_RENEW}; Weir takes it without a restart)"
        )
    return ""


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
