"""What can be set about a client of the Kafka protocol: plain values, which travel to Spark's tasks."""

import ssl
from dataclasses import dataclass, field

from weir.client.access import trusting
from weir.client.admin import Access
from weir.model.errors import ConfigError

#: The only port that is not said.
DEFAULT_PORT = 9092


@dataclass(frozen=True, slots=True)
class Address:
    """A broker's host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """TLS by files in PEM; without a CA, those of the system are trusted."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    password: str | None = field(default=None, repr=False)
    #: Whether the certificate must be of the host that was asked for.
    check_host: bool = True

    def context(self) -> ssl.SSLContext:
        try:
            context = trusting(self.ca)
            context.check_hostname = self.check_host
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, self.password)
        except (OSError, ssl.SSLError) as failure:
            raise ConfigError(f"TLS files cannot be used: {failure}", hint="give paths of files in PEM") from None
        return context


def files_of(access: Access) -> TlsFiles:
    """How to come in to the brokers' own listeners as to their admin REST."""
    return TlsFiles(access.ca, access.certificate, access.key)


@dataclass(frozen=True, slots=True)
class Login:
    """SASL PLAIN. To Weir the password is a token; the user may be anything."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Where the brokers are, how to come in, and how patient to be."""

    servers: tuple[Address, ...]
    client_id: str = "weir"
    tls: TlsFiles | None = None
    login: Login | None = None
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    #: How long to try again what may succeed later: a broker that restarts, a leader that moves.
    retry_for_s: float = 60.0
    #: Whether partitions and groups join a transaction by being used, and each end begins a new epoch (KIP-890).
    joining_by_use: bool = False


def parse_servers(text: str) -> tuple[Address, ...]:
    """`host:port, host:port`; a host with colons stands in brackets."""
    return tuple(_address(part.strip()) for part in text.split(",") if part.strip()) or _none(text)


def _address(text: str) -> Address:
    text = text.rpartition("://")[2]
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        _none(text)
    return Address(host, int(port))


def _none(text: str) -> tuple[Address, ...]:
    raise ConfigError(f"{text!r} names no server", hint="write host:9092, or several with commas between them")
