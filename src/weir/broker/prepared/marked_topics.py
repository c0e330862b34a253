"""Which topics have half messages that wait, in the metadata: so that they are asked about whoever comes or not.

A mark is put when a topic has its first, and taken away when it has had none for a while. One that is there for no
reason costs loading a topic once; one that is missing (the broker died before it was put) costs that its messages
are asked about when somebody comes to the topic.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.model.errors import TopicNotFoundError, WeirError
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock

log = logging.getLogger(__name__)

_EVERY_S = 30.0
_PAGE = 1000


class HalfMark:
    """Of one topic. `needed`: whether any wait."""

    def __init__(self, meta: MetaStore, topic: TopicName, needed: Callable[[], bool]) -> None:
        self._meta = meta
        self._topic = topic
        self._key = keys.half_topic(topic)
        self._needed = needed
        self._is_set = False
        self._changing = asyncio.Lock()

    async def put(self) -> None:
        """Whoever has the topic next shall load it; tried again by whoever asks again."""
        async with self._changing:
            if not self._is_set and self._needed():
                try:
                    await self._meta.put(self._key, b"")
                    self._is_set = True
                except WeirError as failed:
                    log.info("%s is not marked as having half messages yet: %s", self._topic, failed)

    async def clear(self) -> None:
        """None wait any more."""
        async with self._changing:
            if not self._needed():
                try:
                    await self._meta.delete(self._key)
                    self._is_set = False
                except WeirError as failed:
                    log.info("%s stays marked as having half messages: %s", self._topic, failed)


class HasHalf(Protocol):
    """A topic, as far as half messages go."""

    async def clear_mark(self) -> None:
        """Take the mark away if none wait."""


class MarkedTopics:
    """Loads marked topics that nobody has loaded. `load`: raises if it is another broker's."""

    def __init__(
        self,
        meta: MetaStore,
        clock: Clock,
        is_loaded: Callable[[TopicName], bool],
        load: Callable[[TopicName], Awaitable[HasHalf | None]],
    ) -> None:
        self._meta = meta
        self._clock = clock
        self._is_loaded = is_loaded
        self._load = load

    async def run(self) -> None:
        """For ever; at the start, too."""
        while True:
            try:
                await self.look()
            except WeirError as failed:
                log.info("topics with half messages cannot be looked for: %s", failed)
            await self._clock.sleep(_EVERY_S)

    async def look(self) -> None:
        after = ""
        while True:
            page = (await self._meta.page(keys.HALF_TOPICS, after=after, limit=_PAGE)).items
            for item in page:
                await self._look_at(keys.half_topic_of(item.key), item.key)
            if len(page) < _PAGE:
                return
            after = page[-1].key

    async def _look_at(self, name: TopicName, key: str) -> None:
        if self._is_loaded(name):
            return
        try:
            half = await self._load(name)
            if half is not None:
                await half.clear_mark()
        except TopicNotFoundError:
            await self._meta.delete(key)
        except WeirError as elsewhere:
            log.debug("%s has half messages, and is not loaded here: %s", name, elsewhere)
