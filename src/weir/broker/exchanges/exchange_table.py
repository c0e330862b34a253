"""The exchanges of one namespace on one broker: the stored ones as the metadata has them, its own transient ones,
and the index that routes by both.

A stored binding has an effect while the exchanges with its ids are there; until then, or when they are gone, it
waits. Transient bindings go at once with what they lead from or to. Where there are other brokers transient things
are stored, too, so that all brokers route by them; they go with the broker that they were declared at.

The exchanges of every namespace that somebody uses on this broker; of others nothing is known or watched.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weir.broker.api.queues import Routed
from weir.broker.exchanges.routing_index import RoutingIndex
from weir.broker.metadata.exchange_records import Settled, StoredExchanges
from weir.broker.metadata.registry import Registry
from weir.broker.security.authorization import ExchangeAccess
from weir.meta.interfaces import MetaStore
from weir.model.errors import (
    ExchangeInUseError,
    ExchangeNotFoundError,
    MetaError,
    NamespaceNotFoundError,
    TooManyError,
    WeirError,
)
from weir.model.exchanges import (
    PREDECLARED,
    Binding,
    Destination,
    Exchange,
    StoredBinding,
    StoredExchange,
    StoredRecord,
    check_binding,
    check_deletion,
    check_equivalent,
    check_new,
    check_not_default,
    check_publishable,
)
from weir.model.registry import Action
from weir.model.topics import NamespaceName
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope

log = logging.getLogger(__name__)

#: Records that are compiled in one go when a namespace is opened.
_SLICE = 500
#: Bindings of a deleted exchange that are taken out at once.
_AT_ONCE = 64
#: In place of an id, for exchanges in memory: no stored binding names it.
_TRANSIENT = "transient"


@dataclass(frozen=True, slots=True)
class Cluster:
    """`instance`: this life of this broker; `live`: those of all brokers that are registered."""

    instance: str
    live: Callable[[], Collection[str]]


@dataclass(frozen=True, slots=True)
class ExchangeLimits:
    """What one namespace may have."""

    exchanges: int = 100_000
    bindings: int = 1_000_000


class ExchangeTable:
    def __init__(
        self,
        meta: MetaStore,
        runtime: Runtime,
        namespace: NamespaceName,
        access: ExchangeAccess,
        *,
        limits: ExchangeLimits,
        cluster: Cluster | None = None,
    ) -> None:
        """`cluster`: None if there can be no other broker."""
        self._cluster = cluster
        self._runtime = runtime
        self._namespace = namespace
        self._access = access
        self._limits = limits
        self._index = RoutingIndex()
        self._meta = meta
        self._stored = StoredExchanges(meta, runtime, namespace, self._told)
        #: Stored records as they were last looked at, by key.
        self._records: dict[str, StoredRecord] = {}
        #: Of those, the bindings without effect.
        self._waiting: dict[str, StoredBinding] = {}
        self._transient: dict[tuple[Any, ...], Binding] = {}
        self._ids = dict.fromkeys(PREDECLARED, "")
        #: Keys to look at; None once all that was there at the start has been.
        self._unread: dict[str, None] | None = {}
        self._tasks = TaskScope(f"exchanges of {namespace}")
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Know everything there is, and follow changes. Fine if it is started."""
        async with self._starting:
            if self._unread is None:
                return
            try:
                await self._stored.start()
            except MetaError:
                await self._stored.close()
                self._stored = StoredExchanges(self._meta, self._runtime, self._namespace, self._told)
                raise
            while self._unread:
                for key in list(self._unread)[:_SLICE]:
                    del self._unread[key]
                    self._read(key)
                await self._runtime.clock.sleep(0)
            self._unread = None
            self._tasks.spawn(self._tidy(), "tidy")

    async def close(self) -> None:
        await self._tasks.close()
        await self._stored.close()

    # --- questions ----------------------------------------------------------------------------------------------

    def find(self, name: str) -> Exchange | None:
        return self._index.find(name)

    def get(self, name: str) -> Exchange:
        found = self._index.find(name)
        if found is None:
            raise _none(name)
        return found

    def exchanges(self) -> Sequence[Exchange]:
        return self._index.exchanges()

    def bindings(self, *, source: str | None = None, queue: str | None = None) -> Sequence[Binding]:
        if source is not None:
            found = self._index.bindings_from(source)
            return found if queue is None else [one for one in found if one.destination == Destination(queue)]
        return list(self._index.bindings()) if queue is None else self._index.bindings_to(Destination(queue))

    def police(self, alternate_of: Callable[[str], str | None]) -> None:
        """The alternates that policies give to exchanges, from now on."""
        self._index.police(alternate_of)

    def check_publish(self, role: str, exchange: str) -> None:
        found = self.get(exchange)
        check_publishable(found)
        self._access.check_publish(role, self._namespace, exchange)

    def check_key(self, role: str, exchange: Exchange, key: str, action: Action) -> None:
        self._access.check_key(role, self._namespace, exchange, key, action)

    def route(self, exchange: str, keys: tuple[str, ...], headers: Mapping[str, Any]) -> Routed:
        return self._index.route(exchange, keys, headers)

    # --- changes ------------------------------------------------------------------------------------------------

    async def declare(self, role: str, exchange: Exchange) -> Exchange:
        check_not_default(exchange.name)
        self._access.check_declare(role, self._namespace, exchange)
        there = await self._look(exchange.name)
        if there is not None:
            check_equivalent(there, exchange)
            return there
        check_new(exchange)
        if self._index.exchange_count >= self._limits.exchanges:
            raise TooManyError(f"namespace {self._namespace} has {self._limits.exchanges} exchanges")
        if self._is_stored(exchange):
            made = (await self._stored.create(exchange, self._holder(exchange.durable))).exchange
            check_equivalent(made, exchange)
            return made
        if self._index.find(exchange.name) is not None:
            # The watch has yet to tell that the durable one of this name is gone.
            self._take_out(exchange.name)
        self._ids[exchange.name] = _TRANSIENT
        self._index.declare(exchange)
        return exchange

    async def _look(self, name: str) -> Exchange | None:
        """The exchange: another broker may just have made or deleted a durable one."""
        there = self._index.find(name)
        if name in PREDECLARED or (there is not None and not self._is_stored(there)):
            return there
        stored = await self._stored.look(name)
        if stored is not None:
            return stored.exchange
        there = self._index.find(name)
        return there if there is not None and not self._is_stored(there) else None

    def _is_stored(self, exchange: Exchange) -> bool:
        return exchange.durable or self._cluster is not None

    def _holder(self, durable: bool) -> str:
        """With which broker a stored thing goes; "" for what is durable."""
        return "" if durable or self._cluster is None else self._cluster.instance

    async def delete(self, role: str, name: str, *, if_unused: bool = False) -> None:
        check_deletion(name)
        self._access.check_configure(role, self._namespace, name)
        there = self._index.find(name)
        if if_unused and there is not None and self._has_transient_bindings(there):
            raise _in_use(name)
        if there is not None and not self._is_stored(there):
            await self._settle(self._take_out(name))
            return
        if not if_unused:
            deleted = await self._stored.delete(name)
        else:
            deleted = await self._stored.look(name)
            if deleted is not None and await self._stored.settle(name) is Settled.IN_USE:
                raise _in_use(name)
        if deleted is not None:
            await self._clean(deleted)

    async def bind(self, role: str, binding: Binding, *, durable: bool) -> None:
        to = binding.destination
        self._check_ends(role, binding)
        for name in (binding.source, *((to.name,) if to.exchange else ())):
            if self._index.find(name) is None:
                await self._look(name)  # another broker may just have made it
        source = self.get(binding.source)
        lasting = source.durable and (self.get(to.name).durable if to.exchange else durable)
        check_binding(source, binding)
        if self._index.binding_count >= self._limits.bindings:
            raise TooManyError(f"namespace {self._namespace} has {self._limits.bindings} bindings")
        if not lasting and self._cluster is None:
            if self._index.bind(binding):
                self._transient[binding.identity] = binding
            return
        stored = StoredBinding(
            binding,
            self._ids[binding.source],
            self._ids[to.name] if to.exchange else "",
            self._holder(lasting),
        )
        missing = await self._stored.bind(stored)
        if missing is not None:
            raise _none(missing)

    async def unbind(self, role: str, binding: Binding) -> None:
        self._check_ends(role, binding)
        await self._unbind(binding)

    async def forget_queue(self, queue: str) -> None:
        for binding in self._index.bindings_to(Destination(queue)):
            await self._unbind(binding)

    def _check_ends(self, role: str, binding: Binding) -> None:
        check_not_default(binding.source)
        if binding.destination.exchange:
            check_not_default(binding.destination.name)
        self._access.check_bind(role, self._namespace, binding)
        source = self._index.find(binding.source)
        if source is not None:
            self.check_key(role, source, binding.routing_key, Action.CONSUME)

    async def _unbind(self, binding: Binding) -> None:
        if binding.identity in self._transient:
            self._index.unbind(binding)
            await self._settle(self._lost([binding]))
        elif await self._stored.has(binding):
            source = self._index.find(binding.source)
            goes = source is not None and source.auto_delete
            if goes:
                await self._stored.mark(binding.source)
            await self._stored.unbind(binding)
            if goes:
                await self._settle([binding.source])

    async def _settle(self, sources: Iterable[str]) -> None:
        """Delete those of these durable exchanges that go with their last binding, if it is gone."""
        for name in sources:
            there = self._index.find(name)
            if there is not None and self._has_transient_bindings(there):
                await self._stored.unmark(name)
                continue
            deleted = await self._stored.look(name)
            if deleted is not None and await self._stored.settle(name) is Settled.DELETED:
                await self._clean(deleted)

    def _has_transient_bindings(self, exchange: Exchange) -> bool:
        """Whether anything is bound from it that only this broker knows of."""
        bound = self._index.bindings_from(exchange.name)
        return any(binding.identity in self._transient for binding in bound)

    async def _clean(self, deleted: StoredExchange) -> None:
        """Take out the bindings of an exchange that is deleted. Those to it may have been the last of others."""
        name = deleted.exchange.name
        # What was bound to it or from it waits by now; what others bind meanwhile, they take back themselves.
        left = list(self._waiting.values())
        sources = [one.binding for one in left if one.binding.source == name and one.source_id == deleted.id]
        for at in range(0, len(sources), _AT_ONCE):
            await asyncio.gather(*(self._stored.unbind(binding) for binding in sources[at : at + _AT_ONCE]))
        for one in left:
            if one.destination_id == deleted.id:
                await self._unbind(one.binding)

    async def _tidy(self) -> None:
        """Finish what brokers that are no more began."""
        try:
            for stored in list(self._waiting.values()):
                source, to = stored.binding.source, stored.binding.destination.name
                for name, wanted in ((source, stored.source_id), (to, stored.destination_id)):
                    there = await self._stored.look(name) if wanted else None
                    if wanted and (there is None or there.id != wanted):
                        await self._stored.unbind(stored.binding)
            closing = [one for one in self._records.values() if isinstance(one, StoredExchange) and one.closing]
            await self._settle([one.exchange.name for one in closing])
        except MetaError as failure:
            log.warning("exchanges of %s are not tidied up: %s", self._namespace, failure)

    def holders(self) -> set[str]:
        """With which lives of brokers stored things go."""
        return {one.holder for one in self._records.values()} - {""}

    async def forget(self, holders: Collection[str]) -> None:
        """These are no more: what goes with them goes."""
        lost = [one for one in self._records.values() if one.holder in holders]
        try:
            for stored in lost:
                if isinstance(stored, StoredBinding):
                    await self._unbind(stored.binding)
            for stored in lost:
                if isinstance(stored, StoredExchange):
                    deleted = await self._stored.delete(stored.exchange.name, stored.id)
                    if deleted is not None:
                        await self._clean(deleted)
        except MetaError as failure:
            log.warning("exchanges of %s are not tidied up: %s", self._namespace, failure)

    # --- what becomes of the index ------------------------------------------------------------------------------

    def _told(self, key: str) -> None:
        if self._unread is not None:
            self._unread[key] = None
        else:
            self._read(key)

    def _read(self, key: str) -> None:
        """Look at a record that was put or deleted."""
        now, before = self._stored.get(key), self._records.get(key)
        if now is None:
            self._records.pop(key, None)
        else:
            self._records[key] = now
        if isinstance(before, StoredExchange) and (not isinstance(now, StoredExchange) or now.id != before.id):
            self._settle_later(self._forget(before))
        if isinstance(now, StoredExchange) and (not isinstance(before, StoredExchange) or now.id != before.id):
            self._put_in(now)
        if isinstance(now, StoredBinding):
            self._try(key, now)
        elif isinstance(before, StoredBinding) and self._waiting.pop(key, None) is None:
            self._index.unbind(before.binding)

    def _settle_later(self, sources: list[str]) -> None:
        if sources:
            self._tasks.spawn(self._settle(sources), "settle")

    def _forget(self, stored: StoredExchange) -> list[str]:
        """As `_take_out`, of one that may have been replaced here already."""
        name = stored.exchange.name
        return self._take_out(name) if self._ids.get(name) == stored.id else []

    def _put_in(self, stored: StoredExchange) -> None:
        name = stored.exchange.name
        if self._index.find(name) is not None:
            log.warning("exchange %r of %s is durable now, the transient one is gone", name, self._namespace)
            self._settle_later(self._take_out(name))
        self._ids[name] = stored.id
        self._index.declare(stored.exchange)
        for key, waiting in list(self._waiting.items()):
            if name in (waiting.binding.source, waiting.binding.destination.name):
                self._try(key, waiting)

    def _try(self, key: str, stored: StoredBinding) -> None:
        """Let a stored binding have an effect, or wait."""
        binding, to = stored.binding, stored.binding.destination
        self._waiting[key] = stored
        if self._ids.get(binding.source) != stored.source_id:
            return
        if to.exchange and self._ids.get(to.name) != stored.destination_id:
            return
        try:
            check_binding(self.get(binding.source), binding)
        except WeirError as bad:
            log.error("a binding of %r in %s means nothing: %s", binding.source, self._namespace, bad)
            return
        del self._waiting[key]
        self._transient.pop(binding.identity, None)
        self._index.bind(binding)

    def _take_out(self, name: str) -> list[str]:
        """An exchange is gone; answers the durable exchanges that may have lost their last binding by that."""
        del self._ids[name]
        return self._lost(self._index.remove(name))

    def _lost(self, gone: Iterable[Binding]) -> list[str]:
        """Bindings were taken out of the index. Stored ones wait, until whoever deleted their exchange has taken
        them out of the store; transient exchanges that go with their last binding go."""
        durable: list[str] = []
        sources: dict[str, None] = {}
        for binding in gone:
            if self._transient.pop(binding.identity, None) is not None:
                sources[binding.source] = None
            else:
                key = self._stored.key_of(binding)
                record = self._records.get(key)
                if isinstance(record, StoredBinding):
                    self._waiting[key] = record
        for name in sources:
            source = self._index.find(name)
            if source is None or not source.auto_delete or self._index.is_source(name):
                continue
            durable += [name] if self._is_stored(source) else self._take_out(name)
        return durable


def _none(name: str) -> ExchangeNotFoundError:
    return ExchangeNotFoundError(f"no exchange {name[:80]!r}")


def _in_use(name: str) -> ExchangeInUseError:
    return ExchangeInUseError(f"exchange {name[:80]!r} in use")


_SWEEP_S = 30.0


class ExchangeService:
    """Namespaces stay open once they are: their transient exchanges live here."""

    def __init__(
        self,
        meta: MetaStore,
        runtime: Runtime,
        registry: Registry,
        access: ExchangeAccess,
        *,
        limits: ExchangeLimits | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        """`cluster`: the brokers that route by the same exchanges; None if there can be no other."""
        self._meta = meta
        self._runtime = runtime
        self._registry = registry
        self._access = access
        self._limits = limits or ExchangeLimits()
        self._cluster = cluster
        self._absent: set[str] = set()
        self._tables: dict[NamespaceName, ExchangeTable] = {}
        self._tasks = TaskScope("exchanges")

    async def open(self, namespace: NamespaceName) -> ExchangeTable:
        """NamespaceNotFoundError; what a namespace that is gone had in memory goes with it."""
        try:
            self._registry.namespaces.get(namespace)
        except NamespaceNotFoundError:
            table = self._tables.pop(namespace, None)
            if table is not None:
                await table.close()
            raise
        table = self._tables.get(namespace)
        if table is None:
            table = ExchangeTable(
                self._meta, self._runtime, namespace, self._access, limits=self._limits, cluster=self._cluster
            )
            self._tables[namespace] = table
            if self._cluster is not None and not len(self._tasks):
                self._tasks.spawn(self._sweep(self._cluster), "sweep")
        await table.start()
        return table

    async def _sweep(self, cluster: Cluster) -> None:
        """What goes with brokers goes once they were not registered at two looks: one whose lease was late is back
        by then."""
        while True:
            await self._runtime.clock.sleep(_SWEEP_S)
            live = cluster.live()
            absent = {one for table in self._tables.values() for one in table.holders()}.difference(live)
            gone, self._absent = absent & self._absent, absent
            if gone:
                for table in list(self._tables.values()):
                    await table.forget(gone)

    async def close(self) -> None:
        await self._tasks.close()
        for table in list(self._tables.values()):
            await table.close()
        self._tables.clear()

    def __len__(self) -> int:
        """How many namespaces are open."""
        return len(self._tables)
