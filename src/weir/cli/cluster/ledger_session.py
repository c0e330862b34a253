"""A ledger client for the length of one command."""

import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from weir.broker.peers.credentials import ClusterCredentialSettings, load_credentials
from weir.ledger.bookies import BookieDirectory
from weir.ledger.client import LedgerClient
from weir.ledger.remote import RemoteBookiePool
from weir.meta.connect import connect
from weir.runtime.interfaces import Runtime
from weir.runtime.real import run

T = TypeVar("T")


@asynccontextmanager
async def ledger_session(runtime: Runtime, meta_url: str, secret: str = "") -> AsyncIterator[LedgerClient]:
    """Connect to the metadata and the bookies that it names. `secret`: if the environment says none."""
    meta = await connect(meta_url, runtime)
    directory = BookieDirectory(runtime.clock, meta)
    shown = await load_credentials(runtime.disk, _credentials(secret))
    pool = RemoteBookiePool(runtime, directory.resolve, tls=shown.client_tls, secret=shown.secret)
    client = LedgerClient(runtime, meta, pool, directory=directory)
    try:
        await client.start()
        yield client
    finally:
        await client.close()
        await directory.close()
        await pool.close()
        await meta.close()


def _credentials(secret: str) -> ClusterCredentialSettings:
    """What a node of the cluster shows the others; a command that speaks to bookies is one for so long."""
    names = ("SECRET", "CERTIFICATE", "KEY", "AUTHORITY")
    said = [os.environ.get(f"WEIR_CLUSTER_{name}", "") for name in names]
    return ClusterCredentialSettings(said[0] or secret, *said[1:])


def with_client(meta_url: str, work: Callable[[LedgerClient], Coroutine[Any, Any, T]]) -> T:
    """Run `work` with a client on the real runtime."""

    async def main(runtime: Runtime) -> T:
        async with ledger_session(runtime, meta_url) as client:
            return await work(client)

    return run(main)
