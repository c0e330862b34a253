"""Topics as the metadata knows them: which exist, with how many partitions, policies and properties."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from weir.broker.registry.mirror import Mirror
from weir.broker.registry.tenants import NamespaceTable
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec
from weir.model.errors import (
    MetaConflictError,
    MetaKeyMissingError,
    NamespaceNotFoundError,
    NotAllowedError,
    TooManyError,
    TopicExistsError,
    TopicNotFoundError,
)
from weir.model.policies import AutoTopicCreation, Policies
from weir.model.registry import TopicRecord
from weir.model.topics import NamespaceName, TopicName
from weir.runtime import Runtime
from weir.wire.registry import decode_topic, encode_topic

TOPIC: Codec[TopicRecord] = Codec(encode_topic, decode_topic)
#: In the bytes of every topic that is being deleted, and of hardly any other.
DOOMED = b'"deleting"'


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Bounds on topics; 0 means none."""

    max_partitions: int = 10_000
    max_topics_per_namespace: int = 0


class TopicTable:
    """Every topic, by its name without a partition. Methods take the name of a partition for its topic's."""

    def __init__(
        self,
        meta: MetaStore,
        runtime: Runtime,
        namespaces: NamespaceTable,
        limits: TopicLimits,
        on_change: Callable[[str, bool], None],
    ) -> None:
        self._clock = runtime.clock
        self._namespaces = namespaces
        self._limits = limits
        self._on_change = on_change
        self._mirror = Mirror(meta, runtime, keys.TOPICS, TOPIC, self._noted)
        # By the prefix of the namespace, so that listing one costs what it holds.
        self._of_namespace: dict[str, dict[str, None]] = {}
        #: Grows whenever a topic has come, changed or gone.
        self.revision = 0

    async def start(self) -> None:
        await self._mirror.start()

    async def close(self) -> None:
        await self._mirror.close()

    def _noted(self, key: str, present: bool) -> None:
        self.revision += 1
        # A key ends in .../<domain>/<local>, and neither holds a slash.
        prefix = key.rsplit("/", 2)[0] + "/"
        siblings = self._of_namespace.setdefault(prefix, {})
        if present:
            siblings[key] = None
        else:
            siblings.pop(key, None)
            if not siblings:
                del self._of_namespace[prefix]
        self._on_change(key, present)

    # --- reading ----------------------------------------------------------------------------------------------

    def find(self, name: TopicName) -> TopicRecord | None:
        """The topic, or of a partition the topic that has it."""
        record = self._mirror.get(keys.topic(name))
        return record if record is not None and record.holds(name) else None

    def get(self, name: TopicName) -> TopicRecord:
        """TopicNotFoundError if there is none."""
        record = self.find(name)
        if record is None:
            raise _no_topic(name)
        return record

    def of(self, namespace: NamespaceName) -> list[TopicRecord]:
        """The topics of a namespace, sorted by domain and name."""
        found = sorted(self._of_namespace.get(keys.topics_of(namespace), ()))
        return [record for key in found if (record := self._mirror.get(key)) is not None]

    def doomed(self) -> list[TopicRecord]:
        """Those that are being deleted."""
        return [record for record in self._mirror.that_hold(DOOMED) if record.deleting]

    def __len__(self) -> int:
        return len(self._mirror)

    async def look(self, name: TopicName) -> TopicRecord | None:
        """Like `find`, but what is not known here is asked of the store: another broker may just have made it."""
        found = self.find(name)
        if found is not None:
            return found
        await self._mirror.refresh(keys.topic(name))
        return self.find(name)

    # --- changing ---------------------------------------------------------------------------------------------

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
        siblings = len(self._of_namespace.get(keys.topics_of(name.namespace), ()))
        if 0 < self._limits.max_topics_per_namespace <= siblings:
            raise TooManyError(f"namespace {name.namespace} has as many topics as it may")
        record = TopicRecord(
            name, partitions, policies or Policies(), dict(properties or {}), created_ms=self._clock.wall_ms()
        )
        try:
            made = await self._mirror.create(keys.topic(name), record)
        except MetaConflictError:
            raise TopicExistsError(f"{name} exists") from None
        try:
            await self._namespaces.check_stands(name.namespace)
        except NamespaceNotFoundError:
            await self._mirror.delete(made.key, expect=made.version)
            raise
        return made.value

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
            changed = await self._mirror.change(keys.topic(name), change)
        except MetaKeyMissingError:
            raise _no_topic(name) from None
        return changed.value

    async def confirm(self, name: TopicName) -> TopicRecord | None:
        """The topic by the store's own word, which may be ahead of what is known here."""
        found = await self._mirror.refresh(keys.topic(name))
        return None if found is None else found.value

    async def doom(self, name: TopicName) -> TopicRecord:
        """Mark it as being deleted; what it is, so that the caller knows its partitions."""
        if name.partition is not None:
            raise NotAllowedError(f"{name} is a partition", hint="delete the topic as a whole")
        return await self.change(
            name, lambda record: record if record.deleting else replace(record, deleting=True)
        )

    async def delete(self, doomed: TopicRecord) -> None:
        """Take a topic that is being deleted out of the metadata; fine if somebody was faster, and one made anew
        under its name stays."""
        key = keys.topic(doomed.name)
        while True:
            found = await self._mirror.refresh(key)
            if found is None or not found.value.deleting or found.value.created_ms != doomed.created_ms:
                return
            with suppress(MetaConflictError):  # it was changed meanwhile
                await self._mirror.delete(key, expect=found.version)
                return

    def check_partitions(self, partitions: int) -> None:
        """NotAllowedError, TooManyError if no topic can have so many."""
        if partitions < 0:
            raise NotAllowedError(f"a topic cannot have {partitions} partitions")
        if 0 < self._limits.max_partitions < partitions:
            raise TooManyError(f"a topic has at most {self._limits.max_partitions} partitions, not {partitions}")


def _no_topic(name: TopicName) -> TopicNotFoundError:
    return TopicNotFoundError(f"there is no topic {name}")
