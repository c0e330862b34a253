"""The storage of a broker of a cluster: metadata in other processes, ledgers on remote bookies."""

from dataclasses import dataclass

from weir.bookie.damage import Damages
from weir.broker.peers.credentials import ClusterCredentialSettings, load_credentials
from weir.ledger.client import LedgerClient
from weir.ledger.hold import WriteHold
from weir.meta.connect import connect
from weir.meta.held import HeldMeta
from weir.meta.interfaces import MetaStore
from weir.model.check import present
from weir.model.errors import BookieUnavailableError
from weir.model.ledger import Quorum
from weir.runtime.interfaces import Runtime
from weir.server.backup_hold import BackupHold
from weir.server.belonging import check_belongs
from weir.server.node import Node
from weir.server.storage import open_ledgers

_NOT_STARTED = "storage is started before it is used"


@dataclass(frozen=True, slots=True)
class RemoteStorageSettings:
    """Where the metadata is, how this node is known there, and on how many bookies a ledger lies."""

    meta_url: str
    credentials: ClusterCredentialSettings
    bookies: int = 1
    #: Of the broker, for those who ask all brokers to hold their writes.
    name: str = ""


class RemoteStorage(Node):
    """Fills `BrokerStorage`; it has no disk of its own."""

    def __init__(self, runtime: Runtime, settings: RemoteStorageSettings) -> None:
        self._runtime = runtime
        self._settings = settings
        super().__init__()
        self._meta: MetaStore | None = None
        self._ledgers: LedgerClient | None = None
        self.damages = Damages()

    @property
    def meta(self) -> MetaStore:
        return present(self._meta, _NOT_STARTED)

    @property
    def ledgers(self) -> LedgerClient:
        return present(self._ledgers, _NOT_STARTED)

    @property
    def space(self) -> None:
        """Disks are elsewhere."""

    async def _start(self) -> None:
        shown = await load_credentials(self._runtime.disk, self._settings.credentials)
        store = await connect(self._settings.meta_url, self._runtime, secret=shown.secret)
        self._started.push_async_callback(store.close)
        hold = WriteHold()
        self._meta = HeldMeta(store, hold.over)
        self._ledgers = await open_ledgers(self._runtime, self._meta, self._started, credentials=shown, hold=hold)
        bookies = self._ledgers.context.directory.writable()
        await check_belongs(self._runtime, bookies, shown, setting="cluster.secret")
        if self._settings.name:
            holding = BackupHold(self._runtime, store, self._ledgers, self._settings.name)
            holding.start()
            self._started.push_async_callback(holding.close)

    def check_writable(self) -> None:
        found, needed = len(self.ledgers.context.directory.writable()), self._settings.bookies
        full = self.ledgers.full(Quorum(needed, 1, 1))
        if full is not None:
            raise full
        if found < needed:
            raise BookieUnavailableError(
                f"{found} bookies take entries, and a ledger needs {needed}", hint="start more bookies"
            )
