"""Where a server is, as URLs say it."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from weir.model.errors import ConfigError

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
