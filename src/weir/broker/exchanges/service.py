"""The exchanges of every namespace that somebody uses on this broker; of others nothing is known or watched."""

from weir.broker.access.exchanges import ExchangeAccess
from weir.broker.exchanges.table import ExchangeLimits, ExchangeTable
from weir.broker.registry.registry import Registry
from weir.meta.interfaces import MetaStore
from weir.model.errors import NamespaceNotFoundError
from weir.model.topics import NamespaceName
from weir.runtime import Runtime


class ExchangeService:
    """Namespaces stay open once they are: their transient exchanges live here."""

    def __init__(
        self,
        meta: MetaStore,
        runtime: Runtime,
        registry: Registry,
        access: ExchangeAccess,
        limits: ExchangeLimits | None = None,
    ) -> None:
        self._meta = meta
        self._runtime = runtime
        self._registry = registry
        self._access = access
        self._limits = limits or ExchangeLimits()
        self._tables: dict[NamespaceName, ExchangeTable] = {}

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
            table = ExchangeTable(self._meta, self._runtime, namespace, self._access, self._limits)
            self._tables[namespace] = table
        await table.start()
        return table

    async def close(self) -> None:
        for table in list(self._tables.values()):
            await table.close()
        self._tables.clear()

    def __len__(self) -> int:
        """How many namespaces are open."""
        return len(self._tables)
