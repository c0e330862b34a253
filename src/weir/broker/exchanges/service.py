"""The exchanges of every namespace that somebody uses on this broker; of others nothing is known or watched."""

from weir.broker.access.exchanges import ExchangeAccess
from weir.broker.exchanges.table import Cluster, ExchangeLimits, ExchangeTable
from weir.broker.registry.registry import Registry
from weir.meta.interfaces import MetaStore
from weir.model.errors import NamespaceNotFoundError
from weir.model.topics import NamespaceName
from weir.runtime import Runtime
from weir.runtime.tasks import TaskScope

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
