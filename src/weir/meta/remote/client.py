"""Requests to a served metadata store: one link at a time, made anew when it breaks, and what is known when there
was no answer."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from weir.meta.remote.link import MetaLink
from weir.model.errors import (
    ConnectionLostError,
    MetaError,
    MetaUnavailableError,
    NetworkError,
    NotAuthenticatedError,
    UnknownVersionError,
    WeirError,
    WireError,
)
from weir.runtime import Runtime
from weir.runtime.tasks import TaskScope
from weir.wire.error_codes import Failed
from weir.wire.meta.kinds import CODES
from weir.wire.meta.requests import Request
from weir.wire.meta.responses import Items, Response
from weir.wire.proof import ClusterSecret


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """Where the store is served, what both ends must know, and how patient to be."""

    host: str
    port: int
    secret: ClusterSecret | None = None
    connect_timeout_s: float = 2.0
    #: For all tries together.
    request_timeout_s: float = 5.0
    #: How long the store may hold back the answer to a watch that has nothing to tell.
    watch_wait_s: float = 10.0
    backoff_s: float = 0.02
    backoff_max_s: float = 0.5


class RemoteClient:
    """One client. A request waits for a link, within its time; one that may be repeated outlives a lost link."""

    def __init__(self, runtime: Runtime, settings: RemoteSettings) -> None:
        self.settings = settings
        self._runtime = runtime
        self._tasks = TaskScope("meta client")
        self._link: MetaLink | None = None
        self._connecting: asyncio.Task[MetaLink | WeirError] | None = None
        self._failures = 0
        self._problem: WeirError | None = None
        self._closed = asyncio.Event()
        #: Called with the store's instance whenever a link was made.
        self.on_link: Callable[[int], None] = lambda _: None

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    async def ask(
        self, request: Callable[[int], Request], *, repeatable: bool, timeout_s: float | None = None
    ) -> list[Response]:
        """The responses, of which only a listing has several. MetaUnavailableError if there is none; a request
        that is not `repeatable` is sent once at most, as it may have been carried out."""
        try:
            async with asyncio.timeout(timeout_s or self.settings.request_timeout_s):
                return await self._ask(request, repeatable=repeatable)
        except TimeoutError:
            raise self._unavailable(str(self._problem or "it is silent")) from None

    async def _ask(self, request: Callable[[int], Request], *, repeatable: bool) -> list[Response]:
        while True:
            link = await self._linked()
            answer = _Gathered()
            request_id = link.send(request, answer)
            try:
                responses = await answer.all
            except asyncio.CancelledError:
                link.forget(request_id)
                if not self.closed:
                    # Silent for as long as the caller had patience: the connection may be dead without a sign.
                    link.end(ConnectionLostError("the metadata store is silent"))
                raise
            except (NetworkError, WireError, MetaUnavailableError) as lost:
                if not repeatable or self.closed:
                    raise self._unavailable(str(lost)) from None
                continue
            last = responses[-1]
            if isinstance(last, Failed):
                raise CODES.error(last)
            return responses

    async def _linked(self) -> MetaLink:
        """The link, once there is one."""
        while True:
            if self.closed:
                raise MetaError("this metadata client is closed")
            if self._link is not None and self._link.alive:
                return self._link
            if self._connecting is None:
                self._connecting = self._tasks.spawn(self._connect(), "connect")
            made = await asyncio.shield(self._connecting)
            if isinstance(made, MetaLink):
                return made
            if isinstance(made, NotAuthenticatedError | UnknownVersionError):
                raise MetaError(f"the metadata store and we do not fit: {made.what}", hint=made.hint)
            await self.back_off(self._failures)

    async def _connect(self) -> MetaLink | WeirError:
        settings = self.settings
        try:
            link = await MetaLink.open(
                self._runtime,
                settings.host,
                settings.port,
                secret=settings.secret,
                timeout_s=settings.connect_timeout_s,
            )
        except WeirError as problem:
            self._failures += 1
            self._problem = problem
            return problem
        finally:
            self._connecting = None
        self._failures, self._problem = 0, None
        self._link = link
        self._tasks.spawn(link.run(), "link")
        self.on_link(link.instance)
        return link

    async def back_off(self, failures: int) -> None:
        """Wait before another try, longer each time, but not longer than until `close`."""
        settings = self.settings
        limit = min(settings.backoff_max_s, settings.backoff_s * 2.0 ** min(failures, 16))
        try:
            async with asyncio.timeout(self._runtime.rng.uniform(limit / 2, limit)):
                await self._closed.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        self._closed.set()
        if self._link is not None:
            self._link.end(ConnectionLostError("this metadata client is closed"))
        await self._tasks.close()

    def _unavailable(self, why: str) -> MetaUnavailableError:
        where = f"{self.settings.host}:{self.settings.port}"
        return MetaUnavailableError(f"the metadata store at {where} did not answer: {why}")


class _Gathered:
    """The responses to one request."""

    def __init__(self) -> None:
        self.all: asyncio.Future[list[Response]] = asyncio.get_running_loop().create_future()
        self._came: list[Response] = []

    def take(self, response: Response) -> bool:
        self._came.append(response)
        if isinstance(response, Items) and response.more:
            return False
        if not self.all.done():
            self.all.set_result(self._came)
        return True

    def fail(self, why: WeirError) -> None:
        if not self.all.done():
            self.all.set_exception(why)
