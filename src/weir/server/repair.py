"""Auto-recovery as any node can run it: an auditor that finds what is lost, a worker that copies it."""

from contextlib import AsyncExitStack

from weir.broker.peers.settings import PeerCredentials
from weir.ledger.auditor import Auditor
from weir.ledger.settings import LedgerSettings
from weir.ledger.worker import ReplicationWorker
from weir.meta.interfaces import MetaStore
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.server.storage import open_ledgers


class RepairService:
    """`start`, then `close`. One auditor in the cluster is at work at a time; every worker takes its share."""

    def __init__(
        self,
        runtime: Runtime,
        meta: MetaStore,
        owner: str,
        settings: LedgerSettings,
        *,
        credentials: PeerCredentials | None = None,
    ) -> None:
        self._credentials = credentials or PeerCredentials()
        self._runtime = runtime
        self._meta = meta
        self._owner = owner
        self._settings = settings
        self._started = AsyncExitStack()

    async def start(self) -> None:
        client = await open_ledgers(
            self._runtime, self._meta, self._started, settings=self._settings, credentials=self._credentials
        )
        tasks = TaskScope(f"repair {self._owner}")
        self._started.push_async_callback(tasks.close)
        tasks.spawn(Auditor(client.context, self._owner).run(), "auditor")
        tasks.spawn(ReplicationWorker(client.context, self._owner).run(), "worker")

    async def close(self) -> None:
        await self._started.aclose()
