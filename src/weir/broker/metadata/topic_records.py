"""Topics as the metadata knows them: which exist, with how many partitions, policies and properties.

A record is in memory while it is used; of the others the metadata store is asked (docs/adr/0027).

Topics found without looking at all of them: by the id that Kafka's clients know, and by being deleted.

Both are keys of their own beside the topic's record: the id is put with it and goes with it, the mark is put
before a topic is marked as being deleted and goes after it. Topics of releases before this have neither: once all
brokers write them, one walk over all topics adds them, and a key says that it was done.
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

#: Ids that are remembered.
_KEPT_IDS = 20_000
#: A page of a walk over topics, and how many of them are looked at between two turns of the loop.
_PAGE = 1000
_TOPIC_INDEX_AT_ONCE = 100
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
#: A count that took longer than this is kept for a while.
_QUICK_S = 0.02
_COUNT_KEPT_S = 60.0


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Bounds on topics; 0 means none."""

    max_partitions: int = 10_000
    max_topics_per_namespace: int = 0
    #: Records in memory, besides those of topics that are loaded.
    cached: int = 10_000
    #: Records that are read at once where all are wanted.
    page: int = 1000


class TopicTable:
    """Every topic, by its name without a partition. Methods take the name of a partition for its topic's."""

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
        """`on_change(key, value, version)`: a topic was put, or deleted (None); `on_gap`: changes were missed."""
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
        #: Grows whenever a topic that is in memory has changed, and when any has gone.
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
        """The topic (of a partition: the one that has it) if its record is in memory: surely while it is held,
        else perhaps not though there is one."""
        entry = self.entry(name)
        return None if entry is None else entry.value

    def entry(self, name: TopicName) -> CachedValue[TopicRecord] | None:
        """`find`, with what was derived from the record."""
        found = self._records.peek(keys.topic(name))
        return found if found is not None and found.value.holds(name) else None

    @property
    def in_memory(self) -> int:
        """How many records are in memory."""
        return len(self._records)

    def hold(self, name: TopicName) -> None:
        """Keep the topic's record in memory, until it is let go of as often."""
        self._records.hold(keys.topic(name))

    def let_go(self, name: TopicName) -> None:
        self._records.let_go(keys.topic(name))

    # --- reading ------------------------------------------------------------------------------------------------

    async def look(self, name: TopicName) -> TopicRecord | None:
        """The topic, or of a partition the topic that has it; what is not in memory is asked of the store."""
        found = self.find(name)
        if found is not None:
            return found
        read = await self._records.refresh(keys.topic(name))
        return read.value if read is not None and read.value.holds(name) else None

    async def get(self, name: TopicName) -> TopicRecord:
        """TopicNotFoundError if there is none."""
        record = await self.look(name)
        if record is None:
            raise _no_topic(name)
        return record

    async def by_id(self, topic_id: bytes) -> TopicRecord | None:
        """The topic that has this id."""
        name = await self.index.look(topic_id)
        found = None if name is None else await self.look(name)
        if found is None or found.topic_id != topic_id:
            return None
        self.index.note(found)
        return found

    async def pages(
        self, namespace: NamespaceName, domain: Domain | None = None, *, after: TopicName | None = None
    ) -> AsyncIterator[list[Versioned]]:
        """The records of a namespace's topics as the store has them, sorted by domain and name: read page by page,
        with turns for others; only those that come `after` a topic. What comes or goes meanwhile may show or
        not."""
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
        """The topics of a namespace, as `pages` has them."""
        async for page in self.pages(namespace, domain, after=after):
            for item in page:
                try:
                    yield decode_topic(item.value)
                except WireError as bad:
                    log.error("%s cannot be read: %s", item.key, bad)

    async def count(self) -> int:
        """How many there are. Where counting takes long, as of a minute ago."""
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
            raise TopicExistsError(f"{name} exists") from None
        try:
            await self._namespaces.check_stands(name.namespace)
        except NamespaceNotFoundError:
            await self.index.forget(record)
            await self._records.delete(made.key, expect=made.version)
            raise
        return made.value

    async def _made(self, record: TopicRecord) -> VersionedValue[TopicRecord]:
        """Make the record, with the key that its id is found by; MetaConflictError if there is one."""
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
            raise TooManyError(f"namespace {namespace} has as many topics as it may")

    async def ensure(self, name: TopicName, policy: AutoTopicCreation) -> TopicRecord:
        """The topic, made now if the policy lets it; TopicNotFoundError otherwise. Any number may ask at once."""
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
                found = await self.look(name)  # gone again already: then once more
        return found

    async def grow(self, name: TopicName, partitions: int) -> TopicRecord:
        """Give a partitioned topic more partitions; it never gets fewer."""
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
        """Change it by a pure function."""
        try:
            changed = await self._records.change(keys.topic(name), change)
        except MetaKeyMissingError:
            raise _no_topic(name) from None
        return changed.value

    async def confirm(self, name: TopicName) -> TopicRecord | None:
        """The topic by the store's own word, which may be ahead of what is known here."""
        found = await self._records.refresh(keys.topic(name))
        return None if found is None else found.value

    async def doom(self, name: TopicName) -> TopicRecord:
        """Mark it as being deleted; what it is, so that the caller knows its partitions."""
        if name.partition is not None:
            raise NotAllowedError(f"{name} is a partition", hint="delete the topic as a whole")
        await self.get(name)
        await self.index.doom(name)
        return await self.change(
            name, lambda record: record if record.deleting else replace(record, deleting=True)
        )

    async def delete(self, doomed: TopicRecord) -> None:
        """Take a topic that is being deleted out of the metadata; fine if somebody was faster, and one made anew
        under its name stays."""
        key = keys.topic(doomed.name)
        while True:
            found = await self._records.refresh(key)
            if found is None or not found.value.deleting or found.value.created_ms != doomed.created_ms:
                return
            mark = await self.index.mark_of(doomed.name)
            await self.index.forget(found.value)
            with suppress(MetaConflictError):  # it was changed meanwhile
                await self._records.delete(key, expect=found.version)
                await self.index.undoom(mark)
                return

    def check_partitions(self, partitions: int) -> None:
        """NotAllowedError, TooManyError if no topic can have so many."""
        if partitions < 0:
            raise NotAllowedError(f"a topic cannot have {partitions} partitions")
        if 0 < self._limits.max_partitions < partitions:
            raise TooManyError(f"a topic has at most {self._limits.max_partitions} partitions, not {partitions}")


#: Records that are looked at between two turns of the loop.
_AT_ONCE = 100


def _no_topic(name: TopicName) -> TopicNotFoundError:
    return TopicNotFoundError(f"there is no topic {name}")
