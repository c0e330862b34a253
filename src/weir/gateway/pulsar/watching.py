"""A client's watch of a namespace's topics: the list at first, then what changes."""

import asyncio
import logging
from typing import TYPE_CHECKING

from weir.broker.api import TopicListWatch
from weir.model.errors import ConnectionLostError, WeirError
from weir.runtime.turns import OPEN_UNITS
from weir.wire.pulsar.proto import api

if TYPE_CHECKING:
    from weir.gateway.pulsar.session import Session

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
