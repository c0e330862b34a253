"""What a server's "no" means here: the protocol's codes, and those of HTTP, as errors of the one tree.

Whom a client trusts over TLS: the same certificates on every interpreter.

Where a server is, as URLs say it.

What can be set about a client.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from ssl import SSLContext
from urllib.parse import urlsplit

from weir.model import errors
from weir.model.errors import ConfigError, ConnectionLostError, TlsFailedError, TlsRefusedError, WeirError
from weir.wire.pulsar import pulsar_api_pb2 as api

_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651, "http": 8080, "https": 8443}
_SECURE = ("pulsar+ssl", "https")


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """A server's scheme, host and port."""

    scheme: str
    host: str
    port: int

    @property
    def secure(self) -> bool:
        return self.scheme in _SECURE

    @property
    def http(self) -> bool:
        """Whether it is the admin REST, and not the binary protocol."""
        return self.scheme.startswith("http")

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def parse_url(text: str) -> ServerUrl:
    """`pulsar://`, `pulsar+ssl://`, `http://` or `https://`, host, and a port if it is not the usual one."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in _PORTS or not host or parts.path not in ("", "/") or parts.query or parts.username:
        raise ConfigError(
            f"{text!r} is not the URL of a server", hint="write http://host:8080 or pulsar://host:6650"
        )
    return ServerUrl(parts.scheme, host, _PORTS[parts.scheme] if port is None else port)


def split_urls(text: str) -> list[str]:
    """The URLs of several servers of one cluster, written as Pulsar's clients write them: `http://a:8080,b:8080`."""
    first, *others = [part.strip() for part in text.split(",") if part.strip()] or [""]
    scheme = first.partition("://")[0]
    return [first, *(one if "://" in one else f"{scheme}://{one}" for one in others)]


#: So often in a row a server may close a connection without a word, before that is its answer.
_REFUSALS = 3


def trusting(ca: str | None) -> ssl.SSLContext:
    """Trusts what this file of certificates has, or what the system trusts if there is none.

    Since 3.13 Python refuses certificates that lack what RFC 5280 demands of their makers (an authority key id,
    say), and trusts a named certificate even when another one signed it. The first would lock out whoever made
    theirs for clients in Java or C, which do not ask; so Weir never asks, and always does the second.
    """
    context = ssl.create_default_context(cafile=ca)
    context.verify_flags = (context.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def unanswered(lost: ConnectionLostError) -> TlsRefusedError:
    """The same, with what may be done: a server learns of a client's certificate after the client is done with the
    handshake, and one that it does not want it sends away without a word."""
    hint = lost.hint or (
        "if it asks clients for certificates, give one of an authority that it trusts:"
        " --cert and --cert-key, or kafka.ssl.certificate.location"
    )
    return TlsRefusedError(lost.what, hint=hint)


class Refusals:
    """Tells a server that does not take our certificate from one that is away for a while, which also may close a
    connection in our face; but not again and again."""

    def __init__(self, servers: int = 1) -> None:
        """`servers`: how many are asked in turn; any of them may take what the others do not."""
        self._enough = _REFUSALS * servers
        self._weight = 0

    def final(self, failure: WeirError) -> bool:
        """Whether what was just tried need not be tried again."""
        match failure:
            case TlsFailedError():
                self._weight += _REFUSALS
            case TlsRefusedError():
                self._weight += 1
            case _:
                self._weight = 0
        return self._weight >= self._enough


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How it connects, who it is, and how patient it is."""

    token: str | None = None
    tls: SSLContext | None = None
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    #: Whether the broker shall say the offset of each message.
    offsets: bool = False
    #: A server that was silent for so long is asked whether it lives, and has as long to answer.
    keep_alive_s: float = 30.0
    #: Called before a request of the admin REST that may change something.
    before_change: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer sends."""

    #: The name, for deduplication; None: the broker gives one.
    name: str | None = None
    #: What is sent within one turn of the loop becomes one batch, up to these bounds.
    batch_messages: int = 1000
    batch_bytes: int = 128 * 1024
    #: Messages that wait for their receipt; above it `wait_capacity()` waits.
    max_pending: int = 5000


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """How a consumer receives."""

    #: Messages that the broker may send ahead.
    queue: int = 1000
    name: str = ""


_BY_CODE: dict[int, type[errors.WeirError]] = {
    api.AuthenticationError: errors.NotAuthenticatedError,
    api.AuthorizationError: errors.NotAuthorisedError,
    api.ConsumerBusy: errors.SubscriptionBusyError,
    api.ServiceNotReady: errors.TopicClosedError,
    api.ProducerBlockedQuotaExceededError: errors.QuotaExceededError,
    api.ProducerBlockedQuotaExceededException: errors.QuotaExceededError,
    api.ChecksumError: errors.ChecksumError,
    api.UnsupportedVersionError: errors.UnknownVersionError,
    api.TopicNotFound: errors.TopicNotFoundError,
    api.SubscriptionNotFound: errors.SubscriptionNotFoundError,
    api.ConsumerNotFound: errors.ConsumerClosedError,
    api.TooManyRequests: errors.TooManyError,
    api.TopicTerminatedError: errors.StreamTerminatedError,
    api.ProducerBusy: errors.ProducerBusyError,
    api.InvalidTopicName: errors.InvalidNameError,
    api.NotAllowedError: errors.NotAllowedError,
    api.ProducerFenced: errors.ProducerFencedError,
}

_BY_STATUS: dict[int, type[errors.WeirError]] = {
    401: errors.NotAuthenticatedError,
    403: errors.NotAuthorisedError,
    404: errors.NotFoundError,
    405: errors.NotAllowedError,
    409: errors.NotAllowedError,
    412: errors.NotAllowedError,
    429: errors.TooManyError,
    503: errors.TopicClosedError,
}

_CREDENTIALS = "give a token with --token or WEIR_TOKEN"


def error_of(code: int, message: str) -> errors.WeirError:
    """The error that a broker's answer stands for."""
    kind = _BY_CODE.get(code, errors.BrokerError)
    if kind is errors.NotAuthenticatedError:
        return kind(message, hint=_CREDENTIALS)
    what = message or f"the broker refused with {api.ServerError.Name(code)}"  # type: ignore[arg-type]
    return kind(what, hint="")  # the broker has said what can be done


def error_of_status(status: int, reason: str) -> errors.WeirError:
    """The error that an HTTP answer stands for."""
    kind = _BY_STATUS.get(status, errors.BrokerError)
    if status == 404 and reason.startswith("there is no topic "):
        kind = errors.TopicNotFoundError
    if kind is errors.NotAuthenticatedError:
        return kind(reason, hint=_CREDENTIALS)
    return kind(reason, hint="")
