"""The storage of a broker of a cluster: metadata in other processes, ledgers on remote bookies."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from weir.bookie.damage import Damages
from weir.broker.peers.credentials import ClusterCredentialSettings, load_credentials
from weir.ledger.client import LedgerClient
from weir.meta.connect import connect
from weir.meta.interfaces import MetaStore
from weir.model.check import check
from weir.model.errors import BookieUnavailableError
from weir.runtime.interfaces import Runtime
from weir.server.storage import open_ledgers


@dataclass(frozen=True, slots=True)
class RemoteStorageSettings:
    """Where the metadata is, how this node is known there, and on how many bookies a ledger lies."""

    meta_url: str
    credentials: ClusterCredentialSettings
    bookies: int = 1


class RemoteStorage:
    """Fills `BrokerStorage`; it has no disk of its own."""

    def __init__(self, runtime: Runtime, settings: RemoteStorageSettings) -> None:
        self._runtime = runtime
        self._settings = settings
        self._started = AsyncExitStack()
        self._meta: MetaStore | None = None
        self._ledgers: LedgerClient | None = None
        self.damages = Damages()

    @property
    def meta(self) -> MetaStore:
        check(self._meta is not None, "storage is started before it is used")
        return self._meta  # type: ignore[return-value]

    @property
    def ledgers(self) -> LedgerClient:
        check(self._ledgers is not None, "storage is started before it is used")
        return self._ledgers  # type: ignore[return-value]

    async def start(self) -> None:
        """Reach the metadata, and know the bookies. If anything fails, all is undone."""
        try:
            shown = await load_credentials(self._runtime.disk, self._settings.credentials)
            self._meta = await connect(self._settings.meta_url, self._runtime, secret=shown.secret)
            self._started.push_async_callback(self._meta.close)
            self._ledgers = await open_ledgers(self._runtime, self._meta, self._started, credentials=shown)
        except BaseException:
            await self._started.aclose()
            raise

    async def close(self) -> None:
        await self._started.aclose()

    def check_writable(self) -> None:
        found, needed = len(self.ledgers.context.directory.writable()), self._settings.bookies
        if found < needed:
            raise BookieUnavailableError(
                f"{found} bookies take entries, and a ledger needs {needed}", hint="start more bookies"
            )

    async def failed(self) -> None:
        """Never: bookies come back, and so does the metadata."""
        await asyncio.Event().wait()
