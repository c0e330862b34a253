"""Bookies as real processes, killed with SIGKILL under load: what was acknowledged is all there afterwards."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from weir.ledger.bookie_directory import BookieDirectory
from weir.ledger.client import LedgerClient
from weir.ledger.remote_bookie import RemoteBookiePool, RemoteSettings
from weir.ledger.settings import LedgerSettings, RecoverySettings, WriterSettings
from weir.ledger.writer import LedgerWriter
from weir.meta.connect import connect
from weir.model.errors import WeirError
from weir.model.ids import EntryId, LedgerId
from weir.model.ledger import Quorum
from weir.runtime.real import real_runtime
from weir.testing.checking import violations_of
from weir.testing.operations import FINAL, Pending
from weir.testing.storage.checkers import CHECKERS
from weir.testing.storage.history import History, LedgerOpKind, make_payload, payload_id

pytestmark = pytest.mark.process

QUORUM = Quorum(3, 3, 2)
KILLS = 8
#: Acknowledged between two kills, at least.
PROGRESS = 100
SETTINGS = LedgerSettings(
    writer=WriterSettings(window_entries=64, add_timeout_s=2.0, degraded_retry_s=0.2),
    recovery=RecoverySettings(timeout_s=60.0),
    quarantine_s=0.5,
)


@asynccontextmanager
async def ledger_client(meta_url: str) -> AsyncIterator[LedgerClient]:
    runtime = real_runtime()
    meta = await connect(meta_url, runtime)
    directory = BookieDirectory(runtime.clock, meta)
    pool = RemoteBookiePool(runtime, directory.resolve, RemoteSettings(max_backoff_s=0.2))
    client = LedgerClient(runtime, meta, pool, SETTINGS, directory=directory)
    await client.start()
    try:
        yield client
    finally:
        await client.close()
        await directory.close()
        await pool.close()
        await meta.close()


class Load:
    """Writers that go on in a new ledger whenever one fails, until they are told to stop."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.ledgers: list[LedgerId] = []
        self.acknowledged = 0
        self.stopped = False

    async def write(self, name: str, client: LedgerClient, rng: Random) -> None:
        number = 0
        while not self.stopped:
            try:
                writer = await client.create(QUORUM)
            except WeirError:
                await asyncio.sleep(0.05)
                continue
            self.ledgers.append(writer.ledger_id)
            try:
                for _ in range(rng.randint(100, 2000)):
                    if self.stopped or writer.failure is not None:
                        break
                    number += 1
                    self._append(name, writer, make_payload(name, number, rng.randint(10, 2000)))
                    await writer.wait_capacity()
                    await asyncio.sleep(0 if rng.random() < 0.9 else 0.005)
            except WeirError:
                pass
            await self._end(name, writer, abandon=rng.random() < 0.3)

    def _append(self, name: str, writer: LedgerWriter, payload: bytes) -> None:
        pending = self.history.begin(
            name, LedgerOpKind.APPEND, ledger=writer.ledger_id, payload=payload_id(payload)
        )
        writer.append(payload).add_done_callback(lambda answer: self._told(pending, answer))

    def _told(self, pending: Pending, answer: "asyncio.Future[EntryId]") -> None:
        failure = answer.exception()
        if failure is None:
            self.acknowledged += 1
            pending.ok(entry=answer.result())
        else:
            pending.failed(failure)

    async def progress(self, count: int) -> None:
        """Wait until so many more are acknowledged."""
        wanted = self.acknowledged + count
        async with asyncio.timeout(60):
            while self.acknowledged < wanted:
                await asyncio.sleep(0.01)

    async def _end(self, name: str, writer: LedgerWriter, *, abandon: bool) -> None:
        if abandon:
            await writer.abandon()
            return
        pending = self.history.begin(name, LedgerOpKind.CLOSE, ledger=writer.ledger_id)
        try:
            pending.ok(end=(await writer.close()).last_entry)
        except WeirError as failure:
            pending.failed(failure)


async def read_everything(history: History, client: LedgerClient, ledgers: list[LedgerId]) -> None:
    """Recover and read every ledger, from a client that wrote none of it."""
    for ledger_id in ledgers:
        pending = history.begin(FINAL, LedgerOpKind.RECOVER, ledger=ledger_id)
        reader = await client.open(ledger_id)
        end = reader.metadata.last_entry
        pending.ok(end=end)
        async for batch in reader.stream():
            for entry in batch:
                found = history.begin(FINAL, LedgerOpKind.READ, ledger=ledger_id, entry=entry.entry_id)
                found.ok(payload=payload_id(entry.payload))
        await reader.close()


@pytest.mark.timeout(290)
async def test_every_acknowledged_entry_survives_bookies_killed_in_turn_under_load(
    etcd_url: str, bookies: list[Any]
) -> None:
    rng = Random(7)
    loop = asyncio.get_running_loop()
    history = History(loop.time)
    load = Load(history)
    async with ledger_client(etcd_url) as client:
        writers = [asyncio.create_task(load.write(f"w{i}", client, Random(i))) for i in range(3)]
        for turn in range(KILLS):
            await load.progress(PROGRESS + rng.randrange(PROGRESS))
            victim = bookies[turn % len(bookies)]
            await victim.end(signal.SIGKILL)
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            await victim.start()
        load.stopped = True
        await asyncio.gather(*writers)

    async with ledger_client(etcd_url) as fresh:
        await read_everything(history, fresh, load.ledgers)
    ops = history.ops()
    acknowledged = {(op.ledger, op.entry) for op in ops if op.kind is LedgerOpKind.APPEND and op.ok}
    read_back = {(op.ledger, op.entry) for op in ops if op.kind is LedgerOpKind.READ and op.ok}
    assert len(acknowledged) >= KILLS * PROGRESS
    assert acknowledged <= read_back
    assert violations_of(ops, CHECKERS) == []

    for number, bookie in enumerate(bookies):
        # In order or not, the files must be whole.
        await bookie.end(signal.SIGKILL if number % 2 else signal.SIGTERM)
        verify = subprocess.run(
            [sys.executable, "-m", "weir.cli.main", "bookie", "verify", str(bookie.data)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert verify.returncode == 0, f"{bookie.bookie_id}: {verify.stdout}{verify.stderr}"
