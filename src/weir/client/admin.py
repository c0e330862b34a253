"""The admin REST under `/admin/v2`, with Pulsar's paths: JSON in and out, refusals as errors of the one tree."""

import asyncio
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

from weir.client.addresses import ServerUrl, parse_url
from weir.client.refusals import error_of_status
from weir.client.settings import ClientSettings
from weir.client.tls import unanswered
from weir.model.errors import ConfigError, ConnectFailedError, ConnectionLostError, WireError
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.http_client import HttpAnswer, HttpEndpoint
from weir.runtime.interfaces import Network, Runtime

_MAX_REDIRECTS = 5
_MAX_BODY_BYTES = 64 * 1024 * 1024

Query = Mapping[str, str | int | bool]


def topic_path(topic: TopicName, *rest: str | int) -> str:
    """A path about a topic: `persistent/tenant/namespace/topic/...`."""
    namespace = topic.namespace
    parts = (topic.domain.value, namespace.tenant, namespace.name, topic.local_with_partition, *rest)
    return join(*parts)


def namespace_path(namespace: NamespaceName, *rest: str | int) -> str:
    """A path about a namespace."""
    return join("namespaces", namespace.tenant, namespace.name, *rest)


def join(*parts: str | int) -> str:
    """Segments of a path, each quoted."""
    return "/".join(quote(str(part), safe="") for part in parts)


class _Rest:
    """One server, asked by whoever the settings say."""

    def __init__(self, net: Network, url: ServerUrl, settings: ClientSettings) -> None:
        self._url = url
        self._settings = settings
        self._endpoint = HttpEndpoint(net, url.host, url.port, tls=settings.tls if url.secure else None, idle=1)

    async def request(self, method: str, target: str, body: bytes | None) -> HttpAnswer:
        """Ask, and wait for the whole answer."""
        settings = self._settings
        if self._url.secure and settings.tls is None:
            raise ConnectFailedError(f"{self._url} wants TLS", hint="give the CA of the server with --ca")
        headers = {"Accept": "*/*", "User-Agent": "Weir"}
        if settings.token is not None:
            headers["Authorization"] = f"Bearer {settings.token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with asyncio.timeout(settings.request_timeout_s):
                return await self._endpoint.request(
                    method,
                    target,
                    headers=headers,
                    body=body,
                    max_bytes=_MAX_BODY_BYTES,
                    connect_timeout_s=settings.connect_timeout_s,
                )
        except ConnectionLostError as lost:
            if self._url.secure:
                raise unanswered(lost) from None
            if not lost.hint:
                raise ConnectionLostError(lost.what, hint="if the port serves TLS, use https://") from None
            raise
        except TimeoutError:
            raise ConnectionLostError(
                f"{self._url} did not answer {method} {target}", hint="is it the HTTP port of a Weir? see its log"
            ) from None

    def close(self) -> None:
        self._endpoint.close()


class AdminClient:
    """`get`, `put`, `post`, `delete` of paths below `/admin/v2/`; a refusal is raised."""

    def __init__(self, runtime: Runtime, url: str, settings: ClientSettings | None = None) -> None:
        self._runtime = runtime
        self._settings = settings or ClientSettings()
        self._url = parse_url(url)
        if not self._url.http:
            raise ConfigError(f"{url} is not the URL of the admin REST", hint="write http://host:8080")
        self._http = _Rest(runtime.net, self._url, self._settings)

    @property
    def url(self) -> str:
        return str(self._url)

    def other(self, url: str) -> "AdminClient":
        """A client of another server, asked by the same user."""
        return AdminClient(self._runtime, url, self._settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def get(self, path: str, query: Query | None = None) -> Any:
        return _decoded(await self.call("GET", path, query))

    async def put(self, path: str, body: Any = None, query: Query | None = None) -> Any:
        return _decoded(await self.call("PUT", path, query, body))

    async def post(self, path: str, body: Any = None, query: Query | None = None) -> Any:
        return _decoded(await self.call("POST", path, query, body))

    async def delete(self, path: str, query: Query | None = None, body: Any = None) -> Any:
        return _decoded(await self.call("DELETE", path, query, body))

    async def call(self, method: str, path: str, query: Query | None = None, body: Any = None) -> HttpAnswer:
        """The answer as it came, for those that are not JSON."""
        return await self._ask(method, f"/admin/v2/{path}{_query(query)}", body)

    async def own(self, method: str, path: str, body: Any = None, query: Query | None = None) -> Any:
        """The same for what Pulsar has no path for, below `/admin/weir/v1/`."""
        return _decoded(await self._ask(method, f"/admin/weir/v1/{path}{_query(query)}", body))

    async def metrics(self) -> str:
        """What `/metrics` says, in Prometheus' text format."""
        return (await self._ask("GET", "/metrics", None)).body.decode()

    async def broker_url(self, topic: TopicName, *, secure: bool) -> str:
        """Where the topic is served over the binary protocol."""
        found = _decoded(await self._ask("GET", f"/lookup/v2/topic/{topic_path(topic)}", None))
        url = found.get("brokerUrlTls" if secure else "brokerUrl") if isinstance(found, dict) else None
        if not isinstance(url, str) or not url:
            raise ConfigError(
                f"{self._url} names no {'TLS ' if secure else ''}address for {topic}",
                hint="give --url pulsar://host:6650",
            )
        return url

    def close(self) -> None:
        self._http.close()

    async def _ask(self, method: str, target: str, body: Any) -> HttpAnswer:
        if method != "GET" and self._settings.before_change is not None:
            self._settings.before_change()
        data = None if body is None else json.dumps(body).encode()
        answer = await self._http.request(method, target, data)
        for _ in range(_MAX_REDIRECTS):
            if answer.status != 307 or "location" not in answer.headers:
                break
            scheme, _, rest = answer.headers["location"].partition("://")
            authority, _, path = rest.partition("/")
            other = _Rest(self._runtime.net, parse_url(f"{scheme}://{authority}"), self._settings)
            try:
                answer = await other.request(method, f"/{path}", data)
            finally:
                other.close()
        if answer.status >= 300:
            raise error_of_status(answer.status, _reason(answer))
        return answer


def _query(query: Query | None) -> str:
    if not query:
        return ""
    return "?" + urlencode({k: str(v).lower() if isinstance(v, bool) else v for k, v in query.items()})


def _decoded(answer: HttpAnswer) -> Any:
    if not answer.body:
        return None
    try:
        return json.loads(answer.body)
    except ValueError:
        raise WireError("the server's answer is not JSON", hint="check --url: is this the admin REST?") from None


def _reason(answer: HttpAnswer) -> str:
    """What the server says of its refusal."""
    try:
        found = json.loads(answer.body)
    except ValueError:
        found = None
    if isinstance(found, dict) and found.get("reason"):
        return str(found["reason"])
    text = answer.body.decode(errors="replace").strip()
    return text[:200] if text else f"the server answered with {answer.status}"
