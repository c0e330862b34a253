"""Finds the service URLs of a topic's owner for a client's listener, and pushes topic list changes to watchers."""

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from weir.broker.api.broker import Owner, TopicListWatch
from weir.model.errors import ConnectionLostError, NotAllowedError, NotOwnerError, WeirError
from weir.runtime.tasks import OPEN_UNITS
from weir.wire.pulsar import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from weir.gateway.pulsar.session import Session

_TLS = "pulsar+ssl:"
_PLAIN = "pulsar:"


class BrokerUrls(NamedTuple):
    """A broker's URLs for this protocol, empty without such a listener. A client on TLS uses the TLS URL."""

    plain: str = ""
    tls: str = ""


def urls_of(owner: Owner, service_url: str, listener: str = "") -> BrokerUrls:
    """The URLs of a topic's owner, for a client connected to `service_url`, or for the listener that it names.
    NotOwnerError, NotAllowedError."""
    if listener:
        return _named(owner, listener)
    if owner.here:  # the client has reached this listener already
        return _one(service_url)
    urls = BrokerUrls(owner.url("pulsar"), owner.url("pulsar_tls"))
    over_tls = service_url.startswith(_TLS)
    if not (urls.tls if over_tls else urls.plain):
        kind = "for TLS" if over_tls else "without TLS"
        raise NotOwnerError(f"broker {owner.broker_id} owns the topic, but has no known listener {kind}")
    return urls


def _named(owner: Owner, listener: str) -> BrokerUrls:
    url = owner.url(listener)
    if not url.startswith((_TLS, _PLAIN)):
        known = sorted(name for name, url in owner.listeners.items() if url.startswith((_TLS, _PLAIN)))
        raise NotAllowedError(
            f"the broker has no listener named {listener[:80]!r}",
            hint=f"omit the name, or use one of these: {', '.join(known) or 'none is known'}",
        )
    return _one(url)


def _one(url: str) -> BrokerUrls:
    return BrokerUrls(tls=url) if url.startswith(_TLS) else BrokerUrls(url)


log = logging.getLogger(__name__)


class Watch:
    """Pushes topic list changes to the client, after the initial list."""

    def __init__(self, session: "Session", watcher_id: int, topics: TopicListWatch) -> None:
        self._session = session
        self._watcher_id = watcher_id
        self._topics = topics
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._session.tasks.spawn(self._follow(), "watch")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _follow(self) -> None:
        """Push changes until the client closes the watch, the connection ends, or the watch fails; then the client
        finds new topics by polling."""
        try:
            while True:
                change = await self._topics.next()
                await self._session.turns.pause(OPEN_UNITS)  # thousands may watch the same namespace
                self._session.answer(
                    api.CommandWatchTopicUpdate(
                        watcher_id=self._watcher_id,
                        new_topics=map(str, change.added),
                        deleted_topics=map(str, change.removed),
                        topics_hash=change.hash,
                    )
                )
                await self._session.outbox.drain()
        except ConnectionLostError as lost:
            log.info("topic watcher %d of %s ended: %s", self._watcher_id, self._session.peer, lost)
        except WeirError as failed:
            log.warning("topic watcher %d of %s dropped: %s", self._watcher_id, self._session.peer, failed)
        finally:
            self._topics.close()
