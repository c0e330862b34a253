"""The admin REST for code that blocks: Spark's driver, and what runs beside it."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from weir.client.addresses import parse_url, split_urls
from weir.client.admin import AdminClient
from weir.client.settings import ClientSettings
from weir.client.tls import Refusals, trusting
from weir.model.errors import ConfigError, NetworkError, TopicClosedError, WeirError
from weir.runtime.real import real_runtime

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
