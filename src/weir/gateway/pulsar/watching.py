"""A client's watch of a namespace's topics: the list at first, then what changes."""

import asyncio
from typing import TYPE_CHECKING

from weir.broker.api import TopicListWatch
from weir.wire.pulsar.proto import api

if TYPE_CHECKING:
    from weir.gateway.pulsar.session import Session


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
        try:
            while True:
                change = await self._topics.next()
                self._session.answer(
                    api.CommandWatchTopicUpdate(
                        watcher_id=self._watcher_id,
                        new_topics=map(str, change.added),
                        deleted_topics=map(str, change.removed),
                        topics_hash=change.hash,
                    )
                )
                await self._session.outbox.drain()
        finally:
            self._topics.close()
