"""Records of topics in the metadata: partitions, policies and properties, with an index by topic id and by
deletion.

Records in use are in memory; the table reads others from the metadata store (docs/adr/0027).

The index finds topics by Kafka's topic id, and topics marked for deletion, without a scan of all topics. Both are
separate keys: the id key is created and deleted with the record; the deletion mark is written before the mark in
the record, and deleted after the record. Topics of earlier releases have neither: after all brokers write the
index, one scan of all topics adds them, and a key records that the scan is complete.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from weir.broker.metadata.tenants import NamespaceTable
from weir.meta import keys
from weir.meta.interfaces import ABSENT, Creation, MetaStore, Versioned
from weir.meta.mirror import CachedValue, RecordCache
from weir.meta.update import Codec, GroupedCreations, VersionedValue
from weir.model.errors import (
    InvalidNameError,
    MetaConflictError,
    MetaKeyMissingError,
    MetaUnavailableError,
    NamespaceNotFoundError,
    NotAllowedError,
    TooManyError,
    TopicExistsError,
    TopicNotFoundError,
    WireError,
)
from weir.model.policies import AutoTopicCreation, Policies
from weir.model.registry import TopicRecord
from weir.model.topics import Domain, NamespaceName, TopicName
from weir.runtime.interfaces import Runtime
from weir.wire.registry import decode_topic, encode_topic

log = logging.getLogger(__name__)

#: Topic ids in memory.
_KEPT_IDS = 20_000
#: Page size of a scan of topics, and topics per turn of the event loop.
_PAGE = 1000
_TOPIC_INDEX_AT_ONCE = 100
#: Limit of deletions in one round.
_DOOMED_AT_ONCE = 1000
#: Age at which a mark without a deletion is deleted; far above the time between mark and record change.
_FORGOTTEN_MS = 120_000


class TopicIndex:
    def __init__(self, meta: MetaStore, runtime: Runtime, may_complete: Callable[[], bool]) -> None:
        """`may_complete`: whether all brokers write the index."""
        self._meta = meta
        self._clock = runtime.clock
        self._may_complete = may_complete
        self._ids: dict[bytes, TopicName] = {}
        self._complete = False
        self._walking = asyncio.Lock()

    # --- ids ----------------------------------------------------------------------------------------------------

    def entry(self, record: TopicRecord) -> tuple[str, bytes]:
        """Key and value of the index entry of a topic id."""
        return keys.topic_id(record.topic_id), str(record.name).encode()

    def note(self, record: TopicRecord) -> None:
        """Cache the id of a topic."""
        topic_id = record.topic_id
        self._ids.pop(topic_id, None)
        self._ids[topic_id] = record.name
        if len(self._ids) > _KEPT_IDS:
            del self._ids[next(iter(self._ids))]

    def known(self, topic_id: bytes) -> TopicName | None:
        """The topic with this id in the cache; it may be deleted already."""
        return self._ids.get(topic_id)

    async def look(self, topic_id: bytes) -> TopicName | None:
        """The topic with this id; it may be deleted already."""
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
        """Delete the id entry, before the deletion of the record."""
        self._ids.pop(record.topic_id, None)
        await self._meta.delete(keys.topic_id(record.topic_id))

    # --- topics marked for deletion -----------------------------------------------------------------------------

    async def doom(self, name: TopicName) -> None:
        """Write the deletion mark, before the mark in the record."""
        await self._meta.put(keys.doomed_topic(name), f"{self._clock.wall_ms()} {name}".encode())

    async def mark_of(self, name: TopicName) -> Versioned | None:
        """The mark, for `undoom`."""
        return await self._meta.get(keys.doomed_topic(name))

    async def undoom(self, mark: Versioned | None) -> None:
        """Delete the mark, after the deletion of the record; keeps the mark of a later topic of this name."""
        if mark is not None:
            with suppress(MetaConflictError):
                await self._meta.delete(mark.key, expect=mark.version)

    async def doomed(self) -> list[TopicName]:
        """Topics marked for deletion, at most `_DOOMED_AT_ONCE`."""
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

    # --- earlier releases ---------------------------------------------------------------------------------------

    async def is_complete(self) -> bool:
        if not self._complete:
            self._complete = await self._meta.get(keys.TOPIC_INDEX) is not None
        return self._complete

    async def complete(self) -> None:
        """Index the topics of earlier releases, once for the cluster."""
        if not self._may_complete() or await self.is_complete():
            return
        async with self._walking:
            some: list[Creation] = []
            async for record in self._records():
                some.append(Creation(*self.entry(record)))
                if record.deleting:
                    await self.doom(record.name)
                if len(some) >= _TOPIC_INDEX_AT_ONCE:
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
                if not number % _TOPIC_INDEX_AT_ONCE:
                    await self._clock.sleep(0)
            if len(page) < _PAGE:
                return
            after = page[-1].key


def _name(value: bytes) -> TopicName | None:
    try:
        return TopicName.parse(value.decode(errors="replace"))
    except InvalidNameError:
        return None


TOPIC: Codec[TopicRecord] = Codec(encode_topic, decode_topic)
#: A count that takes longer than this is cached for `_COUNT_KEPT_S`.
_QUICK_S = 0.02
_COUNT_KEPT_S = 60.0


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Bounds on topics; 0 means none."""

    max_partitions: int = 10_000
    max_topics_per_namespace: int = 0
    #: Records in memory, in addition to those of loaded topics.
    cached: int = 10_000
    #: Records per page of a full scan.
    page: int = 1000


class TopicTable:
    """All topics, by name without partition. Methods treat the name of a partition as the name of its topic."""

    def __init__(
        self,
        meta: MetaStore,
        runtime: Runtime,
        namespaces: NamespaceTable,
        limits: TopicLimits,
        *,
        on_change: Callable[[str, bytes | None, int], None],
        on_gap: Callable[[], None],
        may_index: Callable[[], bool] = lambda: True,
    ) -> None:
        """`on_change(key, value, version)`: called for a put or deleted (None) topic; `on_gap`: for missed
        changes."""
        self._meta = meta
        self._clock = runtime.clock
        self._namespaces = namespaces
        self._limits = limits
        self._on_change = on_change
        self._on_gap = on_gap
        self._records = RecordCache(
            meta, runtime, keys.TOPICS, TOPIC, limit=limits.cached, on_change=self._noted, on_gap=self._missed
        )
        self._creations = GroupedCreations(meta, runtime.clock)
        self._may_index = may_index
        self.index = TopicIndex(meta, runtime, may_index)
        #: Increases with each change of a topic in memory, and with each deletion of a topic.
        self.revision = 0
        self._counted = 0
        self._count_again_at = 0.0

    async def start(self) -> None:
        await self._records.start()

    async def close(self) -> None:
        await self._creations.close()
        await self._records.close()

    def _noted(self, key: str, value: bytes | None, version: int, replaced: bool) -> None:
        if value is None or replaced:
            self.revision += 1
        self._on_change(key, value, version)

    def _missed(self) -> None:
        self.revision += 1
        self._on_gap()

    # --- in memory ----------------------------------------------------------------------------------------------

    def find(self, name: TopicName) -> TopicRecord | None:
        """The record of the topic, or of the partition's topic, if it is in memory. Guaranteed after `hold`;
        otherwise None does not mean that the topic does not exist."""
        entry = self.entry(name)
        return None if entry is None else entry.value

    def entry(self, name: TopicName) -> CachedValue[TopicRecord] | None:
        """Like `find`, with the values derived from the record."""
        found = self._records.peek(keys.topic(name))
        return found if found is not None and found.value.holds(name) else None

    @property
    def in_memory(self) -> int:
        """Number of records in memory."""
        return len(self._records)

    def hold(self, name: TopicName) -> None:
        """Keep the topic's record in memory, until as many calls of `let_go`."""
        self._records.hold(keys.topic(name))

    def let_go(self, name: TopicName) -> None:
        self._records.let_go(keys.topic(name))

    # --- reading ------------------------------------------------------------------------------------------------

    async def look(self, name: TopicName) -> TopicRecord | None:
        """The record of the topic, or of the partition's topic, from memory or from the store."""
        found = self.find(name)
        if found is not None:
            return found
        read = await self._records.refresh(keys.topic(name))
        return read.value if read is not None and read.value.holds(name) else None

    async def get(self, name: TopicName) -> TopicRecord:
        """The record of the topic; TopicNotFoundError."""
        record = await self.look(name)
        if record is None:
            raise _no_topic(name)
        return record

    async def by_id(self, topic_id: bytes) -> TopicRecord | None:
        """The topic with this id."""
        name = await self.index.look(topic_id)
        found = None if name is None else await self.look(name)
        if found is None or found.topic_id != topic_id:
            return None
        self.index.note(found)
        return found

    async def pages(
        self, namespace: NamespaceName, domain: Domain | None = None, *, after: TopicName | None = None
    ) -> AsyncIterator[list[Versioned]]:
        """Encoded records of a namespace's topics, sorted by domain and name; with `after`, only later ones. Reads
        page by page and yields to the event loop. Concurrent changes may or may not be visible."""
        prefix = keys.topics_of(namespace) + ("" if domain is None else f"{domain.value}/")
        last = "" if after is None else keys.topic(after)
        while True:
            page = (await self._meta.page(prefix, after=last, limit=self._limits.page)).items
            for first in range(0, len(page), _AT_ONCE):
                yield page[first : first + _AT_ONCE]
                await self._clock.sleep(0)
            if len(page) < self._limits.page:
                return
            last = page[-1].key

    async def of(
        self, namespace: NamespaceName, domain: Domain | None = None, *, after: TopicName | None = None
    ) -> AsyncIterator[TopicRecord]:
        """Decoded records of a namespace's topics, in the order of `pages`."""
        async for page in self.pages(namespace, domain, after=after):
            for item in page:
                try:
                    yield decode_topic(item.value)
                except WireError as bad:
                    log.error("%s cannot be read: %s", item.key, bad)

    async def count(self) -> int:
        """Number of topics; up to one minute old if counting is slow."""
        now = self._clock.monotonic()
        if now >= self._count_again_at:
            self._counted = await self._meta.count(keys.TOPICS)
            took_s = self._clock.monotonic() - now
            self._count_again_at = 0.0 if took_s <= _QUICK_S else now + _COUNT_KEPT_S
        return self._counted

    # --- changing -----------------------------------------------------------------------------------------------

    async def create(
        self,
        name: TopicName,
        *,
        partitions: int = 0,
        properties: Mapping[str, str] | None = None,
        policies: Policies | None = None,
    ) -> TopicRecord:
        """NamespaceNotFoundError, TopicExistsError, TooManyError."""
        if name.partition is not None:
            raise NotAllowedError(f"{name} names a partition", hint="create the topic with that many partitions")
        self.check_partitions(partitions)
        if self._namespaces.find(name.namespace) is None:
            await self._namespaces.check_stands(name.namespace)
        await self._check_room(name.namespace)
        record = TopicRecord(
            name,
            partitions,
            policies or Policies(),
            dict(properties or {}),
            created_ms=self._clock.wall_ms(),
            ordered_id=self._may_index(),
        )
        try:
            made = await self._made(record)
        except MetaConflictError:
            raise TopicExistsError(f"{name} exists already") from None
        try:
            await self._namespaces.check_stands(name.namespace)
        except NamespaceNotFoundError:
            await self.index.forget(record)
            await self._records.delete(made.key, expect=made.version)
            raise
        return made.value

    async def _made(self, record: TopicRecord) -> VersionedValue[TopicRecord]:
        """Create the record and the index entry of its id; MetaConflictError if the record exists."""
        key, data, beside = keys.topic(record.name), encode_topic(record), self.index.entry(record)
        try:
            version = await self._creations.create(Creation(key, data, (beside,)))
        except MetaUnavailableError:
            made = await self._records.create(key, record, tried=data)
            await self._meta.put(*beside)
            return made
        if version == ABSENT:
            raise MetaConflictError(f"{key} exists already")
        made = VersionedValue(key, record, version)
        self._records.entered(made, data)
        return made

    async def _check_room(self, namespace: NamespaceName) -> None:
        limit = self._limits.max_topics_per_namespace
        if 0 < limit <= (await self._meta.count(keys.topics_of(namespace)) if limit else 0):
            raise TooManyError(f"namespace {namespace} has reached its limit of {limit} topics")

    async def ensure(self, name: TopicName, policy: AutoTopicCreation) -> TopicRecord:
        """The record of the topic, created if the policy allows it; else TopicNotFoundError. Safe for concurrent
        calls."""
        found = await self.look(name)
        while found is None:
            if name.partition is not None:
                raise _no_topic(name)
            if not policy.allowed:
                raise TopicNotFoundError(
                    f"there is no topic {name}", hint="create it, or allow the automatic creation of topics"
                )
            try:
                return await self.create(name, partitions=policy.partitions)
            except TopicExistsError:
                found = await self.look(name)  # None if it was deleted meanwhile: try again
        return found

    async def grow(self, name: TopicName, partitions: int) -> TopicRecord:
        """Increase the number of partitions; NotAllowedError for a decrease."""
        self.check_partitions(partitions)

        def grown(record: TopicRecord) -> TopicRecord:
            if record.deleting:
                raise _no_topic(name)
            if not record.partitions:
                raise NotAllowedError(f"{record.name} is not partitioned")
            if partitions < record.partitions:
                raise NotAllowedError(f"{record.name} has {record.partitions} partitions and cannot have fewer")
            return record if partitions == record.partitions else replace(record, partitions=partitions)

        return await self.change(name, grown)

    async def change(self, name: TopicName, change: Callable[[TopicRecord], TopicRecord]) -> TopicRecord:
        """Change the record with a pure function."""
        try:
            changed = await self._records.change(keys.topic(name), change)
        except MetaKeyMissingError:
            raise _no_topic(name) from None
        return changed.value

    async def confirm(self, name: TopicName) -> TopicRecord | None:
        """The record of the topic, read from the store, which may be newer than the one in memory."""
        found = await self._records.refresh(keys.topic(name))
        return None if found is None else found.value

    async def doom(self, name: TopicName) -> TopicRecord:
        """Mark the topic for deletion; returns its record, which names the partitions."""
        if name.partition is not None:
            raise NotAllowedError(f"{name} is a partition", hint="delete the topic as a whole")
        await self.get(name)
        await self.index.doom(name)
        return await self.change(
            name, lambda record: record if record.deleting else replace(record, deleting=True)
        )

    async def delete(self, doomed: TopicRecord) -> None:
        """Delete the record of a topic marked for deletion. Does nothing if another broker was faster; keeps a new
        topic of the same name."""
        key = keys.topic(doomed.name)
        while True:
            found = await self._records.refresh(key)
            if found is None or not found.value.deleting or found.value.created_ms != doomed.created_ms:
                return
            mark = await self.index.mark_of(doomed.name)
            await self.index.forget(found.value)
            with suppress(MetaConflictError):  # changed meanwhile
                await self._records.delete(key, expect=found.version)
                await self.index.undoom(mark)
                return

    def check_partitions(self, partitions: int) -> None:
        """NotAllowedError or TooManyError for an invalid number of partitions."""
        if partitions < 0:
            raise NotAllowedError(f"a topic cannot have {partitions} partitions")
        if 0 < self._limits.max_partitions < partitions:
            raise TooManyError(f"a topic has at most {self._limits.max_partitions} partitions, not {partitions}")


#: Records per turn of the event loop.
_AT_ONCE = 100


def _no_topic(name: TopicName) -> TopicNotFoundError:
    return TopicNotFoundError(f"there is no topic {name}")
