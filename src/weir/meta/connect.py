"""Opens a metadata store by its URL."""

from ssl import SSLContext
from urllib.parse import unquote, urlsplit

from weir.meta.embedded import open_embedded
from weir.meta.etcd import EtcdMeta, EtcdSettings
from weir.meta.interfaces import MetaStore
from weir.meta.local import MemoryCore, MemoryMeta
from weir.meta.remote_store import RemoteMeta, RemoteSettings
from weir.model.errors import ConfigError
from weir.runtime.interfaces import Runtime
from weir.wire.node.proof import ClusterSecret

_HINT = "use memory:, file:/path/to/folder, etcd://host:port[,host:port] or weir://host:port"
_ETCD_PORT = 2379


async def connect(
    url: str,
    runtime: Runtime,
    *,
    tls: SSLContext | None = None,
    accept_loss: bool = False,
    secret: ClusterSecret | None = None,
) -> MetaStore:
    """Open the store at the URL; ConfigError if the URL is invalid. `tls` is for etcd, `accept_loss` for a folder,
    `secret` for another process of this Weir.

    memory:                         a new store with the lifetime of the client
    file:/path/to/folder            the embedded store in that folder
    etcd://host:port[,host:port]    an etcd cluster, reached by any of these endpoints
    weir://host:port                the embedded store of another process that serves it
    """
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "memory" and not rest:
        return MemoryMeta(MemoryCore(runtime.clock), runtime)
    if colon and scheme == "file":
        return await open_embedded(runtime, _folder(url), accept_loss=accept_loss)
    if colon and scheme == "etcd":
        return EtcdMeta(runtime, EtcdSettings(_endpoints(url, rest), tls=tls))
    if colon and scheme == "weir":
        return RemoteMeta(runtime, RemoteSettings(*_served(url, rest), secret=secret))
    raise ConfigError(f"{url!r} does not name a metadata store", hint=_HINT)


def _folder(url: str) -> str:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or path.strip("/") == "":
        raise ConfigError(f"{url!r} does not name an absolute folder", hint=_HINT)
    return path.rstrip("/")


def _endpoints(url: str, rest: str) -> tuple[tuple[str, int], ...]:
    authority = rest.removeprefix("//").rstrip("/")
    if not rest.startswith("//") or "/" in authority or "@" in authority:
        raise ConfigError(f"{url!r} is not a list of endpoints", hint=_HINT)
    return tuple(_endpoint(url, part) for part in authority.split(","))


def _served(url: str, rest: str) -> tuple[str, int]:
    endpoints = _endpoints(url, rest)
    if len(endpoints) != 1 or endpoints[0][1] == 0 or ":" not in rest:
        raise ConfigError(f"{url!r} is not one host and port", hint=_HINT)
    return endpoints[0]


def _endpoint(url: str, text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as bad:
        raise ConfigError(f"{url!r} has an endpoint that is no host:port: {text!r}", hint=_HINT) from bad
    if not host:
        raise ConfigError(f"{url!r} has an endpoint without a host", hint=_HINT)
    return host, _ETCD_PORT if port is None else port
