"""The admin REST under `/admin/v2`, with Pulsar's paths: JSON in and out, refusals as errors of the one tree.

The admin REST for code that blocks: Spark's driver, and what runs beside it.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

from weir.client.access import (
    ClientSettings,
    Refusals,
    ServerUrl,
    error_of_status,
    parse_url,
    split_urls,
    trusting,
    unanswered,
)
from weir.model.errors import (
    ConfigError,
    ConnectFailedError,
    ConnectionLostError,
    NetworkError,
    TopicClosedError,
    WeirError,
    WireError,
)
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.http_client import HttpAnswer, HttpEndpoint
from weir.runtime.interfaces import Network, Runtime
from weir.runtime.real import real_runtime

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


_PAUSE_S = 0.2
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Access:
    """Where the admin REST is, who asks, and how long what may be better later is tried again. `url` may name
    several brokers (`http://a:8080,b:8080`): one that is gone is passed over."""

    url: str
    token: str | None = None
    ca: str | None = None
    patience_s: float = 60.0
    #: Files in PEM of a client's own certificate, where servers ask for one; the key may be in the same file.
    certificate: str | None = None
    key: str | None = None

    def tls(self) -> ssl.SSLContext:
        """How to come in by TLS; ConfigError if files cannot be used."""
        try:
            context = trusting(self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as failure:
            raise ConfigError(f"TLS files cannot be used: {failure}", hint="give paths of files in PEM") from None
        return context


def ask(access: Access, verb: str, path: str, body: object = None) -> Any:
    """Below `/admin/weir/v1/`. What is asked must be fit to be asked twice."""
    return _ask(access, verb, path, body, own=True)


def ask_v2(access: Access, verb: str, path: str, body: object = None) -> Any:
    """The same below `/admin/v2/`."""
    return _ask(access, verb, path, body, own=False)


def ask_each(access: Access, paths: Sequence[str]) -> list[Any]:
    """Answers to GETs below `/admin/v2/`, by one connection. One that is refused is answered by its error, and not
    in the way of the others."""

    async def work(admin: AdminClient) -> list[Any]:
        found: list[Any] = []
        for path in paths:
            try:
                found.append(await _answer(admin, "GET", path, None))
            except (NetworkError, TopicClosedError):
                raise
            except WeirError as refused:
                found.append(refused)
        return found

    return _patiently(access, work) if paths else []


def _ask(access: Access, verb: str, path: str, body: object, *, own: bool) -> Any:
    def work(admin: AdminClient) -> Awaitable[Any]:
        return admin.own(verb, path, body) if own else _answer(admin, verb, path, body)

    return _patiently(access, work)


async def _answer(admin: AdminClient, verb: str, path: str, body: object) -> Any:
    answer = await admin.call(verb, path, None, body)
    return json.loads(answer.body) if answer.body else None


def _patiently(access: Access, ask: Callable[[AdminClient], Awaitable[T]]) -> T:
    urls = split_urls(access.url)
    tls = access.tls() if any(parse_url(url).secure for url in urls) else None
    settings = ClientSettings(token=access.token, tls=tls)

    async def work() -> T:
        runtime = real_runtime()
        deadline = runtime.clock.monotonic() + access.patience_s
        refusals = Refusals(len(urls))
        for attempt in count(1):
            try:
                async with AdminClient(runtime, urls[(attempt - 1) % len(urls)], settings) as admin:
                    return await ask(admin)
            except (NetworkError, TopicClosedError) as failure:
                late = attempt >= len(urls) and runtime.clock.monotonic() > deadline
                if refusals.final(failure) or late:
                    raise
            if not attempt % len(urls):
                await runtime.clock.sleep(_PAUSE_S)
        raise AssertionError

    return asyncio.run(work())
