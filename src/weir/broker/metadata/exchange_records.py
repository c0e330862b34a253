"""Durable exchanges and bindings of one namespace in the metadata: a key for each, changed by compare-and-set.

The cost of a binding does not depend on the number of other bindings. The store has no transactions: `bind` writes
the binding first, then reads its exchanges; `settle` marks the exchange first, then reads its bindings. In any
order of events, one of the two sees the other and undoes its change. Records that an interrupted change leaves
behind have stale ids and no effect; the next broker that opens the namespace deletes them.
"""

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.mirror import Mirror
from weir.meta.update import Codec, VersionedValue
from weir.model.errors import InvariantError, MetaConflictError, MetaKeyMissingError
from weir.model.exchanges import Binding, Exchange, StoredBinding, StoredExchange, StoredRecord
from weir.model.topics import NamespaceName
from weir.runtime.interfaces import Runtime
from weir.wire.exchanges import binding_digest, decode_record, encode_record

RECORD: Codec[StoredRecord] = Codec(encode_record, decode_record)

_ATTEMPTS = 40
_PAGE = 100


class Settled(Enum):
    """Result of the conditional deletion of an unused exchange."""

    DELETED = "deleted"
    IN_USE = "in use"
    GONE = "gone"


class StoredExchanges:
    """Records of a namespace. `on_change(key)`: called for each put or deleted record, by any broker, in order."""

    def __init__(
        self, meta: MetaStore, runtime: Runtime, namespace: NamespaceName, on_change: Callable[[str], None]
    ) -> None:
        self._meta = meta
        self._runtime = runtime
        self._namespace = namespace
        self._mirror = Mirror(
            meta, runtime, keys.exchanges_of(namespace), RECORD, lambda key, present: on_change(key)
        )

    async def start(self) -> None:
        await self._mirror.start()

    async def close(self) -> None:
        await self._mirror.close()

    def get(self, key: str) -> StoredRecord | None:
        return self._mirror.get(key)

    def key_of(self, binding: Binding) -> str:
        return keys.binding(self._namespace, binding.source, binding_digest(binding))

    # --- exchanges ----------------------------------------------------------------------------------------------

    async def look(self, name: str) -> StoredExchange | None:
        """The exchange, read from the store."""
        found = await self._look(name)
        return None if found is None else found[0]

    async def _look(self, name: str) -> tuple[StoredExchange, int] | None:
        found = await self._mirror.refresh(keys.exchange(self._namespace, name))
        return None if found is None else (_exchange(found), found.version)

    async def create(self, exchange: Exchange, holder: str = "") -> StoredExchange:
        """Create the exchange unless one of this name exists; returns the one that exists then."""
        new = StoredExchange(exchange, f"{self._runtime.rng.getrandbits(96):024x}", holder=holder)
        key = keys.exchange(self._namespace, exchange.name)
        return _exchange(await self._mirror.upsert(key, lambda current: current or new))

    async def delete(self, name: str, id: str = "") -> StoredExchange | None:  # noqa: A002
        """Delete the exchange, even with bindings; returns the deleted record. `id`: only if the exchange has this
        id."""
        for _ in range(_ATTEMPTS):
            found = await self._look(name)
            if found is None or (id and found[0].id != id):
                return None
            try:
                await self._mirror.delete(keys.exchange(self._namespace, name), expect=found[1])
            except MetaConflictError:
                continue  # another broker marked it meanwhile
            return found[0]
        raise _contended(name)

    async def mark(self, name: str) -> None:
        """Mark the exchange before the deletion of its possibly last binding: after an interruption, the next
        broker that opens the namespace settles it."""
        await self._mark(name, closing=True)

    async def unmark(self, name: str) -> None:
        await self._mark(name, closing=False)

    async def _mark(self, name: str, *, closing: bool) -> VersionedValue[StoredRecord] | None:
        def marked(record: StoredRecord) -> StoredRecord:
            if isinstance(record, StoredExchange) and record.closing != closing:
                return replace(record, closing=closing)
            return record

        try:
            return await self._mirror.change(keys.exchange(self._namespace, name), marked)
        except MetaKeyMissingError:
            return None

    async def settle(self, name: str) -> Settled:
        """Delete the exchange if no durable binding has it as its source."""
        for _ in range(_ATTEMPTS):
            marked = await self._mark(name, closing=True)
            if marked is None:
                return Settled.GONE
            if await self._bound(_exchange(marked)):
                await self.unmark(name)
                return Settled.IN_USE
            try:
                await self._mirror.delete(marked.key, expect=marked.version)
            except MetaConflictError:
                continue  # a new binding has removed the mark
            return Settled.DELETED
        raise _contended(name)

    async def _bound(self, source: StoredExchange) -> bool:
        prefix, after = keys.bindings_from(self._namespace, source.exchange.name), ""
        while True:
            listing = await self._meta.page(prefix, after=after, limit=_PAGE)
            for item in listing.items:
                record = decode_record(item.value)
                if not isinstance(record, StoredBinding) or record.source_id != source.id:
                    continue  # a binding of a former exchange of this name
                if await self._leads(record):
                    return True
            if len(listing.items) < _PAGE:
                return False
            after = listing.items[-1].key

    async def _leads(self, stored: StoredBinding) -> bool:
        """Whether the destination exchange exists; always true for a queue."""
        if not stored.destination_id:
            return True
        there = await self.look(stored.binding.destination.name)
        return there is not None and there.id == stored.destination_id

    # --- bindings -----------------------------------------------------------------------------------------------

    async def bind(self, stored: StoredBinding) -> str | None:
        """Store a binding, then read its exchanges from the store. If one does not exist, delete the binding and
        return the name of that exchange."""
        await self._mirror.upsert(
            self.key_of(stored.binding), lambda current: current if current == stored else stored
        )
        if stored.source_id and not await self._stands(stored.binding.source, stored.source_id):
            await self.unbind(stored.binding)
            return stored.binding.source
        if not await self._leads(stored):
            await self.unbind(stored.binding)
            return stored.binding.destination.name
        return None

    async def _stands(self, name: str, id: str) -> bool:  # noqa: A002
        """Whether the exchange exists; removes its mark, because it is now the source of a binding."""
        for _ in range(_ATTEMPTS):
            found = await self._look(name)
            if found is None or found[0].id != id:
                return False
            if not found[0].closing:
                return True
            try:
                await self._mirror.put(
                    keys.exchange(self._namespace, name), replace(found[0], closing=False), expect=found[1]
                )
            except MetaConflictError:
                continue
            return True
        raise _contended(name)

    async def has(self, binding: Binding) -> bool:
        """Whether the store contains the binding."""
        return await self._mirror.refresh(self.key_of(binding)) is not None

    async def unbind(self, binding: Binding) -> None:
        """Delete the binding; does nothing if it does not exist."""
        key = self.key_of(binding)
        for _ in range(_ATTEMPTS):
            found = await self._mirror.refresh(key)
            if found is None:
                return
            try:
                await self._mirror.delete(key, expect=found.version)
            except MetaConflictError:
                continue
            return
        raise _contended(binding.source)


async def forget_exchanges(meta: MetaStore, namespace: NamespaceName) -> None:
    """Delete all exchanges and bindings of a deleted namespace."""
    for item in (await meta.list(keys.exchanges_of(namespace))).items:
        await meta.delete(item.key)


def _exchange(found: VersionedValue[StoredRecord]) -> StoredExchange:
    if not isinstance(found.value, StoredExchange):
        raise InvariantError(f"{found.key} does not contain an exchange")
    return found.value


def _contended(name: str) -> MetaConflictError:
    return MetaConflictError(f"exchange {name[:80]!r} was changed concurrently", hint="try again")
