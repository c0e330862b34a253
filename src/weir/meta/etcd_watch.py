"""A watch on etcd that outlives its connections, and the history that etcd forgets."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from weir.meta.etcd_client import EtcdClient, refused
from weir.meta.interfaces import Change
from weir.meta.watching import WatchTracker
from weir.model.errors import MetaHistoryLostError, MetaUnavailableError, NetworkError, WireError
from weir.runtime.http_client import HttpConnection
from weir.wire import etcd as wire
from weir.wire.etcd import Failure, JsonLines, WatchAnswer


class EtcdWatch:
    """One watch: a stream of changes while the connection stands, a new one from the next revision when it
    breaks, and a listing compared with what was known when etcd has compacted what came between."""

    def __init__(
        self, client: EtcdClient, prefix: str, since: int, known: list[str] | None, *, resyncs: bool = True
    ) -> None:
        """`known`: the keys that existed at `since`, if the caller knows. Without `resyncs` the watch fails with
        MetaHistoryLostError once etcd has compacted what it did not see."""
        self._resyncs = resyncs
        self._client = client
        self._prefix = prefix
        self._since = since
        self._known = known
        self._failures = 0

    async def changes(self) -> AsyncIterator[Change]:
        """Every change, until the client is closed."""
        tracker = WatchTracker(self._since, await self._keys_at_start() if self._resyncs else None)
        while not self._client.closed:
            stream = await self._open(tracker.position + 1)
            if stream is None:
                continue
            try:
                while (answer := await stream.next()) is not None:
                    if answer.compacted:
                        for change in await self._catch_up(tracker):
                            yield change
                        break
                    if answer.canceled:
                        break
                    for event in answer.events:
                        self._failures = 0
                        if tracker.admit(Change(event.key, event.value, event.mod_revision)):
                            yield Change(event.key, event.value, event.mod_revision)
                    if answer.events and not answer.fragment:
                        tracker.settle(answer.events[-1].mod_revision)
            finally:
                stream.close()
            if not stream.was_idle and not self._client.closed:
                await self._pause()

    async def _keys_at_start(self) -> list[str]:
        """The keys that the reader may hear deleted. Unknowable, so empty, if `since` itself is compacted."""
        if self._known is not None or self._since == 0:
            return self._known or []
        while not self._client.closed:
            try:
                listing = await self._client.list(self._prefix, revision=self._since, keys_only=True)
            except MetaUnavailableError:
                await self._pause()
                continue
            if isinstance(listing, Failure):
                if listing.code != wire.CODE_OUT_OF_RANGE:
                    raise refused(listing)
                return []
            return [item.key for item in listing.items]
        return []

    async def _open(self, start_revision: int) -> "_Stream | None":
        try:
            connection = await self._client.stream(
                wire.PATH_WATCH, wire.watch_request(self._prefix, start_revision)
            )
        except MetaUnavailableError:
            await self._pause()
            return None
        return _Stream(self._client, connection)

    async def _catch_up(self, tracker: WatchTracker) -> list[Change]:
        if not self._resyncs:
            raise MetaHistoryLostError(f"etcd has compacted what a watch of {self._prefix} did not see")
        try:
            listing = await self._client.list(self._prefix)
        except MetaUnavailableError:
            return []  # the watch is opened again, and finds the same gap
        if isinstance(listing, Failure):
            if listing.code != wire.CODE_OUT_OF_RANGE:
                raise refused(listing)
            return []
        self._failures = 0
        return tracker.resync(listing)

    async def _pause(self) -> None:
        await self._client.back_off(self._failures)
        self._failures += 1


class _Stream:
    """The answers of one watch request."""

    def __init__(self, client: EtcdClient, connection: HttpConnection) -> None:
        self._client = client
        self._connection = connection
        self._lines = JsonLines()
        self._waiting: deque[WatchAnswer] = deque()
        #: Nothing came for long: not a failure, but worth asking anew.
        self.was_idle = False

    async def next(self) -> WatchAnswer | None:
        """The next answer; None once the stream has ended, broken or idled."""
        while not self._waiting:
            try:
                async with asyncio.timeout(self._client.settings.watch_renew_s):
                    data = await self._connection.data()
                if not data:
                    return None
                self._waiting.extend(wire.decode_watch(line) for line in self._lines.feed(data))
            except TimeoutError:
                self.was_idle = True
                return None
            except (NetworkError, WireError):
                return None
        return self._waiting.popleft()

    def close(self) -> None:
        self._client.end_stream(self._connection)
