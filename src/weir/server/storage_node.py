"""The storage process of `weir up --workers N`: one folder, its metadata and bookie served to the workers."""

from collections.abc import Callable

from weir.bookie.server import BookieServer, ServerSettings
from weir.meta.remote.server import MetaServer, MetaServerSettings
from weir.runtime.interfaces import Runtime
from weir.server.addresses import Address
from weir.server.node import Node
from weir.server.storage import StorageFolder, StorageSettings
from weir.wire.proof import ClusterSecret


class StorageNode(Node):
    """The folder, served; at the end what was taken is answered and flushed."""

    def __init__(
        self,
        runtime: Runtime,
        settings: StorageSettings,
        *,
        meta: Address,
        bookie: Address,
        secret: ClusterSecret,
        on_locked: Callable[[], None] | None = None,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._meta_at = meta
        self._bookie_at = bookie
        self._secret = secret
        self._folder = StorageFolder(runtime, settings, on_locked=on_locked)
        super().__init__()
        self._addresses: dict[str, Address] = {}

    @property
    def addresses(self) -> dict[str, Address]:
        """Where metadata and bookie are served."""
        return dict(self._addresses)

    async def failed(self) -> None:
        await self._folder.failed()

    async def _start(self) -> None:
        folder = self._folder
        await folder.start()
        self._started.push_async_callback(folder.close)
        me = self._settings.bookie.bookie_id
        where = ServerSettings(self._bookie_at.host, self._bookie_at.port)
        bookie = BookieServer(self._runtime, folder.bookie, me, where, secret=self._secret)
        await bookie.start()
        self._started.push_async_callback(bookie.close)
        await folder.register(Address(self._bookie_at.host, bookie.port))
        served = MetaServerSettings(self._meta_at.host, self._meta_at.port, self._secret)
        meta = MetaServer(self._runtime, folder.meta.core, served)
        await meta.start()
        self._started.push_async_callback(meta.close)
        self._addresses = {
            "meta": Address(self._meta_at.host, meta.port),
            "bookie": Address(self._bookie_at.host, bookie.port),
        }
