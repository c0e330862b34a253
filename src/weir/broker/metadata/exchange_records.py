"""Durable exchanges and bindings of one namespace in the metadata: a key for each, changed by compare-and-set.

A binding's cost does not depend on how many others there are. There are no transactions: a binding is written
first, then its exchanges are looked at; an exchange is marked first, then its bindings are looked for. Whatever
the order of events, one of the two sees the other and steps back (as in `broker.registry.parents`). What a change
that was cut short leaves is known by its ids, has no effect, and is taken out by whoever opens the namespace next.
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
    """What became of an exchange that was to be deleted if unused."""

    DELETED = "deleted"
    IN_USE = "in use"
    GONE = "gone"


class StoredExchanges:
    """`on_change(key)` is called for every record that is put or deleted, by anybody, in order."""

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
        """The exchange by the store's own word."""
        found = await self._look(name)
        return None if found is None else found[0]

    async def _look(self, name: str) -> tuple[StoredExchange, int] | None:
        found = await self._mirror.refresh(keys.exchange(self._namespace, name))
        return None if found is None else (_exchange(found), found.version)

    async def create(self, exchange: Exchange, holder: str = "") -> StoredExchange:
        """The exchange of this name that there is, which is this one if there was none."""
        new = StoredExchange(exchange, f"{self._runtime.rng.getrandbits(96):024x}", holder=holder)
        key = keys.exchange(self._namespace, exchange.name)
        return _exchange(await self._mirror.upsert(key, lambda current: current or new))

    async def delete(self, name: str, id: str = "") -> StoredExchange | None:  # noqa: A002
        """Delete the exchange, whatever is bound; answers what it was. `id`: only if it is still that one."""
        for _ in range(_ATTEMPTS):
            found = await self._look(name)
            if found is None or (id and found[0].id != id):
                return None
            try:
                await self._mirror.delete(keys.exchange(self._namespace, name), expect=found[1])
            except MetaConflictError:
                continue  # somebody marked it meanwhile
            return found[0]
        raise _contended(name)

    async def mark(self, name: str) -> None:
        """Before the binding that may be the last is taken out: if this is cut short, the exchange is settled by
        whoever opens the namespace next."""
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
                continue  # somebody bound to it, and took the mark off
            return Settled.DELETED
        raise _contended(name)

    async def _bound(self, source: StoredExchange) -> bool:
        prefix, after = keys.bindings_from(self._namespace, source.exchange.name), ""
        while True:
            listing = await self._meta.page(prefix, after=after, limit=_PAGE)
            for item in listing.items:
                record = decode_record(item.value)
                if not isinstance(record, StoredBinding) or record.source_id != source.id:
                    continue  # what a former exchange of this name left
                if await self._leads(record):
                    return True
            if len(listing.items) < _PAGE:
                return False
            after = listing.items[-1].key

    async def _leads(self, stored: StoredBinding) -> bool:
        """Whether its destination is there; queues are not looked for."""
        if not stored.destination_id:
            return True
        there = await self.look(stored.binding.destination.name)
        return there is not None and there.id == stored.destination_id

    # --- bindings -----------------------------------------------------------------------------------------------

    async def bind(self, stored: StoredBinding) -> str | None:
        """Put a binding; answers the exchange that is not there, by the store's own word after the binding was
        written, and takes it back then."""
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
        """Whether the exchange is there and stays, now that a binding has it as its source."""
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
        """By the store's own word."""
        return await self._mirror.refresh(self.key_of(binding)) is not None

    async def unbind(self, binding: Binding) -> None:
        """Delete the binding; fine if there is none."""
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
    """Take out all that a namespace which is no more had."""
    for item in (await meta.list(keys.exchanges_of(namespace))).items:
        await meta.delete(item.key)


def _exchange(found: VersionedValue[StoredRecord]) -> StoredExchange:
    if not isinstance(found.value, StoredExchange):
        raise InvariantError(f"{found.key} holds no exchange")
    return found.value


def _contended(name: str) -> MetaConflictError:
    return MetaConflictError(f"exchange {name[:80]!r} is changed again and again", hint="try again")
