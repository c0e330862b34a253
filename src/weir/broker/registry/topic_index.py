"""Topics found without looking at all of them: by the id that Kafka's clients know, and by being deleted.

Both are keys of their own beside the topic's record: the id is put with it and goes with it, the mark is put
before a topic is marked as being deleted and goes after it. Topics of releases before this have neither: once all
brokers write them, one walk over all topics adds them, and a key says that it was done.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from weir.meta import keys
from weir.meta.interfaces import Creation, MetaStore, Versioned
from weir.model.errors import InvalidNameError, MetaConflictError, WireError
from weir.model.registry import TopicRecord
from weir.model.topics import TopicName
from weir.runtime import Runtime
from weir.wire.registry import decode_topic

log = logging.getLogger(__name__)

#: Ids that are remembered.
_KEPT_IDS = 20_000
#: A page of a walk over topics, and how many of them are looked at between two turns of the loop.
_PAGE = 1000
_AT_ONCE = 100
#: Deletions that are gone on with in one round.
_DOOMED_AT_ONCE = 1000
#: A mark without a deletion goes after this; whoever marks is through with it long before.
_FORGOTTEN_MS = 120_000


class TopicIndex:
    def __init__(self, meta: MetaStore, runtime: Runtime, may_complete: Callable[[], bool]) -> None:
        """`may_complete`: whether every broker writes the index by now."""
        self._meta = meta
        self._clock = runtime.clock
        self._may_complete = may_complete
        self._ids: dict[bytes, TopicName] = {}
        self._complete = False
        self._walking = asyncio.Lock()

    # --- ids ----------------------------------------------------------------------------------------------------

    def entry(self, record: TopicRecord) -> tuple[str, bytes]:
        """The key and value that a topic's id is found by."""
        return keys.topic_id(record.topic_id), str(record.name).encode()

    def note(self, record: TopicRecord) -> None:
        """Remember the id of a topic that is at hand."""
        topic_id = record.topic_id
        self._ids.pop(topic_id, None)
        self._ids[topic_id] = record.name
        if len(self._ids) > _KEPT_IDS:
            del self._ids[next(iter(self._ids))]

    def known(self, topic_id: bytes) -> TopicName | None:
        """The topic that had this id when it was last seen here."""
        return self._ids.get(topic_id)

    async def look(self, topic_id: bytes) -> TopicName | None:
        """The topic that has this id, or had it."""
        found = self._ids.get(topic_id)
        if found is not None:
            return found
        item = await self._meta.get(keys.topic_id(topic_id))
        if item is not None:
            return _name(item.value)
        if not await self.is_complete():
            async with self._walking:
                async for record in self._records():
                    if record.topic_id == topic_id:
                        self.note(record)
                        return record.name
        return None

    async def forget(self, record: TopicRecord) -> None:
        """Before the record goes."""
        self._ids.pop(record.topic_id, None)
        await self._meta.delete(keys.topic_id(record.topic_id))

    # --- topics that are being deleted --------------------------------------------------------------------------

    async def doom(self, name: TopicName) -> None:
        """Before the record is marked."""
        await self._meta.put(keys.doomed_topic(name), f"{self._clock.wall_ms()} {name}".encode())

    async def mark_of(self, name: TopicName) -> Versioned | None:
        """The mark, for `undoom`."""
        return await self._meta.get(keys.doomed_topic(name))

    async def undoom(self, mark: Versioned | None) -> None:
        """After the record is gone; the mark of a later topic of this name stays."""
        if mark is not None:
            with suppress(MetaConflictError):
                await self._meta.delete(mark.key, expect=mark.version)

    async def doomed(self) -> list[TopicName]:
        """Topics that are marked as being deleted, or were; the first of them, if there are very many."""
        await self.complete()
        listing = await self._meta.page(keys.DOOMED_TOPICS, limit=_DOOMED_AT_ONCE)
        found = []
        for item in listing.items:
            record = await self._meta.get(keys.TOPICS + item.key.removeprefix(keys.DOOMED_TOPICS))
            if record is not None and decode_topic(record.value).deleting:
                found.append(decode_topic(record.value).name)
            else:
                await self._forget_mark(item)
        return found

    async def _forget_mark(self, item: Versioned) -> None:
        since = item.value.partition(b" ")[0]
        if not since.isdigit() or self._clock.wall_ms() - int(since) >= _FORGOTTEN_MS:
            await self.undoom(item)

    # --- topics of before ---------------------------------------------------------------------------------------

    async def is_complete(self) -> bool:
        if not self._complete:
            self._complete = await self._meta.get(keys.TOPIC_INDEX) is not None
        return self._complete

    async def complete(self) -> None:
        """Index what releases of before have made, once for all brokers."""
        if not self._may_complete() or await self.is_complete():
            return
        async with self._walking:
            some: list[Creation] = []
            async for record in self._records():
                some.append(Creation(*self.entry(record)))
                if record.deleting:
                    await self.doom(record.name)
                if len(some) >= _AT_ONCE:
                    await self._meta.create_many(some)
                    some = []
            if some:
                await self._meta.create_many(some)
        await self._meta.put(keys.TOPIC_INDEX, b"1")

    async def _records(self) -> AsyncIterator[TopicRecord]:
        after = ""
        while True:
            page = (await self._meta.page(keys.TOPICS, after=after, limit=_PAGE)).items
            for number, item in enumerate(page, 1):
                try:
                    yield decode_topic(item.value)
                except WireError as bad:
                    log.error("%s cannot be read: %s", item.key, bad)
                if not number % _AT_ONCE:
                    await self._clock.sleep(0)
            if len(page) < _PAGE:
                return
            after = page[-1].key


def _name(value: bytes) -> TopicName | None:
    try:
        return TopicName.parse(value.decode(errors="replace"))
    except InvalidNameError:
        return None
