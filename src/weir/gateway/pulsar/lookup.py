"""GET_TOPICS_OF_NAMESPACE, WATCH_TOPIC_LIST and WATCH_TOPIC_LIST_CLOSE.

A client's watch of a namespace's topics: the list at first, then what changes.

PARTITIONED_METADATA and LOOKUP: how many partitions a topic has, and which broker serves it.

GET_SCHEMA and GET_OR_CREATE_SCHEMA.

Where a client that came by one listener finds another broker.
"""

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
    """A broker's listeners for this protocol, empty where it has none. A client takes the one for TLS if it
    came so."""

    plain: str = ""
    tls: str = ""


def urls_of(owner: Owner, service_url: str, listener: str = "") -> BrokerUrls:
    """Of the broker that has a topic, for a client that came to `service_url`, or that asks for a listener by its
    name."""
    if listener:
        return _named(owner, listener)
    if owner.here:  # who came to this listener reaches it again
        return _one(service_url)
    urls = BrokerUrls(owner.url("pulsar"), owner.url("pulsar_tls"))
    over_tls = service_url.startswith(_TLS)
    if not (urls.tls if over_tls else urls.plain):
        kind = "for TLS" if over_tls else "without TLS"
        raise NotOwnerError(f"broker {owner.broker_id} has the topic, and no listener {kind} that is known")
    return urls


def _named(owner: Owner, listener: str) -> BrokerUrls:
    url = owner.url(listener)
    if not url.startswith((_TLS, _PLAIN)):
        known = sorted(name for name, url in owner.listeners.items() if url.startswith((_TLS, _PLAIN)))
        raise NotAllowedError(
            f"there is no listener named {listener[:80]!r}",
            hint=f"leave the name out, or use one of these: {', '.join(known) or 'none is known'}",
        )
    return _one(url)


def _one(url: str) -> BrokerUrls:
    return BrokerUrls(tls=url) if url.startswith(_TLS) else BrokerUrls(url)


log = logging.getLogger(__name__)


class Watch:
    """Tells its client what comes and goes, once it knows the list."""

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
        """Until the client closes the watch, its connection is gone, or the list cannot be followed: then the
        client finds new topics by its own periodic look."""
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
