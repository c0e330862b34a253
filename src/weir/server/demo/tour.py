"""`weir demo`: a tour of what stands so far, on this machine, in a folder that is gone afterwards.

The second half of the tour: a whole Weir, asked by Pulsar's own client, stopped and started again.
"""

import asyncio
import importlib
import importlib.util
import logging
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from weir.bookie.settings import BookieSettings
from weir.ledger.bookie_directory import BookieDirectory
from weir.ledger.client import LedgerClient
from weir.ledger.remote_bookie import RemoteBookiePool
from weir.ledger.repair import Repair, check_ledger
from weir.ledger.writer import LedgerWriter
from weir.meta.connect import connect
from weir.meta.interfaces import MetaStore
from weir.model.errors import LedgerFencedError, WeirError, WriterFencedError
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import Quorum
from weir.runtime.interfaces import Runtime
from weir.runtime.real import run
from weir.server.addresses import Address
from weir.server.bookie_node import BookieNode, BookieNodeSettings
from weir.server.broker_node import BrokerNode
from weir.server.config.tree import Config
from weir.server.demo.sql import SparkStarter, missing, sql_tour

_MESSAGES = 10_000
_DELAYED_MS = 1_500
#: One consumer's turn at waiting, and how many turns of both may pass with nothing before that is a loss.
_TURN_MS = 50
_QUIET_TURNS = 200

#: Told of each step and what came of it.
Did = Callable[[str, str], None]


def has_client() -> bool:
    """Whether Pulsar's official client is installed here; it is no part of Weir."""
    return importlib.util.find_spec("pulsar") is not None


async def pulsar_tour(runtime: Runtime, folder: str, did: Did) -> None:
    """Produce, stop, start, consume: with the unmodified client, over its own protocol."""
    any_port = Address("127.0.0.1", 0)
    config = Config(data=folder)
    listeners = replace(
        config.listeners, pulsar=any_port, kafka=any_port, amqp=any_port, rocketmq=any_port, http=any_port
    )
    config = replace(config, listeners=listeners)
    for story, step in ((_produce, "produce"), (_consume, "consume")):
        weir = BrokerNode(runtime, config)
        await weir.start()
        try:
            url = f"pulsar://{weir.addresses['pulsar']}"
            # The client blocks, and has threads of its own: it gets one, as it would have its own process.
            did(step, await asyncio.get_running_loop().run_in_executor(None, story, url))
        finally:
            await weir.close()


def _client(url: str) -> Any:
    pulsar = importlib.import_module("pulsar")
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar, pulsar.Client(url, logger=quiet)


def _produce(url: str) -> str:
    pulsar, client = _client(url)
    batching = pulsar.BatchingType.KeyBased
    client.subscribe("orders", "billing", consumer_type=pulsar.ConsumerType.KeyShared).close()
    producer = client.create_producer("orders", batching_type=batching, block_if_queue_full=True)
    failed: list[Any] = []
    for number in range(_MESSAGES):
        producer.send_async(
            b"order %d" % number,
            lambda result, _id: None if result == pulsar.Result.Ok else failed.append(result),
            partition_key=f"customer-{number % 100}",
        )
    producer.flush()
    producer.send(b"reminder", partition_key="later", deliver_after=timedelta(milliseconds=_DELAYED_MS))
    client.close()
    if failed:
        raise WeirError(f"{len(failed)} orders were refused: {failed[0]}")
    later = f"one to be seen in {_DELAYED_MS / 1000:g} s"
    return f"{_MESSAGES} orders by key and {later}, by Pulsar's client; then stopped"


def _consume(url: str) -> str:
    pulsar, client = _client(url)
    consumers = [
        client.subscribe("orders", "billing", consumer_type=pulsar.ConsumerType.KeyShared, consumer_name=name)
        for name in ("left", "right")
    ]
    seen: dict[str, list[int]] = {}
    counts = {"left": 0, "right": 0}
    reminders = quiet = 0
    while sum(map(len, seen.values())) < _MESSAGES or not reminders:
        quiet += 1
        for consumer, name in zip(consumers, counts, strict=True):
            try:
                message = consumer.receive(_TURN_MS if quiet > 1 else 1)
            except pulsar.Timeout:
                continue
            quiet = 0
            consumer.acknowledge(message)
            counts[name] += 1
            if message.data() == b"reminder":
                reminders += 1
            else:
                seen.setdefault(message.partition_key(), []).append(int(message.data().split()[1]))
        if quiet > _QUIET_TURNS:
            raise WeirError(f"only {sum(counts.values())} of {_MESSAGES + 1} messages came")
    client.close()
    if any(numbers != sorted(set(numbers)) for numbers in seen.values()):
        raise WeirError("the orders of some customer came out of order")
    shares = " and ".join(str(count) for count in counts.values())
    shared = f"shared by two consumers ({shares})"
    return f"started again: all of them once, in order per customer, {shared}; the late one too"


_ENTRIES = 20_000
_ENTRY_BYTES = 1024
_BATCH = 500
_BOOKIES = ("b1", "b2", "b3", "b4")
_QUORUM = Quorum(ensemble=3, write=3, ack=2)


@click.command(
    epilog="""
\b
Example:
  weir demo        # about a minute; needs no options and leaves nothing behind but a picture
"""
)
@click.option(
    "--plot", default="weir-demo.png", show_default=True, metavar="FILE", help="Where the picture of it goes."
)
def demo(plot: str) -> None:
    """Show what Weir does: four bookies, one of them stopped under load, a writer that vanishes, repair; then a
    whole Weir that Pulsar's official client (if installed) produces to and, after a restart, consumes from; then
    orders by Pulsar's client and payments by Kafka's, joined and summed by streaming SQL on Spark."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="weir-demo-") as folder, _logs_kept(Path(folder)):
        run(lambda runtime: _Tour(runtime, console, Path(folder), Path(plot)).walk())


@contextmanager
def _logs_kept(folder: Path) -> Iterator[None]:
    """Log into a file, and show only errors: that a bookie stops is part of the story. If the tour fails, keep the
    logs, and say where."""
    file = logging.FileHandler(folder / "demo.log")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    for shown in logging.getLogger().handlers:
        shown.setLevel(logging.ERROR)
    logger = logging.getLogger("weir")
    logger.addHandler(file)
    logger.setLevel(logging.INFO)
    try:
        yield
    except Exception:
        kept = Path(tempfile.mkdtemp(prefix="weir-demo-failed-"))
        for log in (*folder.glob("*.log"), *folder.glob("*/*.log")):
            shutil.copy(log, kept)
        click.echo(f"The demo failed. The logs of Spark and of Weir are in {kept}", err=True)
        raise
    finally:
        logger.removeHandler(file)
        file.close()


class _Tour:
    def __init__(self, runtime: Runtime, console: Console, folder: Path, plot: Path) -> None:
        self._runtime = runtime
        self._console = console
        self._folder = folder
        self._plot = plot
        self._began = self._first = runtime.clock.monotonic()

    async def walk(self) -> None:
        spark = None if missing() else SparkStarter(self._folder / "spark")
        try:
            await self._storage()
            if has_client():
                await pulsar_tour(self._runtime, str(self._folder / "weir"), self._did)
            else:
                install = f"{sys.executable} -m pip install pulsar-client"
                self._did("produce", f"left out: {install} to see Pulsar's own client on Weir")
            if spark is not None:
                await sql_tour(str(self._folder / "sql"), spark, self._did, self._plot)
            else:
                self._did("sql", f"left out: make setup installs {', '.join(missing())}, to see SQL on Spark")
        finally:
            if spark is not None:
                spark.stop()
        took = self._runtime.clock.monotonic() - self._first
        self._console.print(
            f"\nAll of that in {took:.0f} s.\n"
            "Next: [bold]make test[/] proves it, [bold]make sim SEEDS=500[/] breaks it in virtual time, "
            "[bold]make bench[/] measures it.\n"
            "Yours: [bold]weir up[/], then point any Pulsar client to pulsar://127.0.0.1:6650, "
            "or any Kafka client to 127.0.0.1:9092,\n"
            "and ask [bold]weir sql[/] what they wrote. Docs: docs/."
        )

    async def _storage(self) -> None:
        meta = await connect(f"file:{self._folder / 'meta'}", self._runtime)
        nodes = {name: await self._start_bookie(name, meta) for name in _BOOKIES}
        self._did("start", f"{len(nodes)} bookies on loopback, embedded metadata in {self._folder}")
        try:
            async with self._client(meta) as client:
                await self._story(client, nodes)
        finally:
            for node in nodes.values():
                await node.close()
            await meta.close()

    async def _story(self, client: LedgerClient, nodes: dict[str, BookieNode]) -> None:
        writer = await client.create(_QUORUM)
        stopped = writer.metadata.fragments[0].bookies[0]
        acknowledged = await self._write(writer, nodes[stopped])
        self._did(
            "write",
            f"{acknowledged} entries of {_ENTRY_BYTES} B acknowledged by 2 of 3, fsynced; "
            f"{stopped} was stopped half-way and replaced without a pause",
        )
        ledger_id = writer.ledger_id
        closed = await client.recover(ledger_id)  # as another broker would: the writer has not closed its ledger
        self._did("recover", f"fenced and closed at entry {closed.last_entry} by someone else")
        self._did("old writer", await self._refusal(writer))
        self._did("read", f"{await self._read(client, ledger_id)} entries, every checksum right")
        del nodes[stopped]
        await self._repair(client, ledger_id, stopped)

    async def _start_bookie(self, name: str, meta: MetaStore) -> BookieNode:
        settings = BookieNodeSettings(
            bookie=BookieSettings(BookieId(name), str(self._folder / name)),
            meta_url="",
            listen=Address("127.0.0.1", 0),
        )
        node = BookieNode(self._runtime, settings, meta=meta)
        await node.start()
        return node

    @asynccontextmanager
    async def _client(self, meta: MetaStore) -> AsyncIterator[LedgerClient]:
        directory = BookieDirectory(self._runtime.clock, meta)
        pool = RemoteBookiePool(self._runtime, directory.resolve)
        client = LedgerClient(self._runtime, meta, pool, directory=directory)
        await client.start()
        try:
            yield client
        finally:
            await client.close()
            await pool.close()
            await directory.close()

    async def _write(self, writer: LedgerWriter, victim: BookieNode) -> int:
        last = None
        with Progress(console=self._console, transient=True) as bar:
            task = bar.add_task("writing", total=_ENTRIES)
            for first in range(0, _ENTRIES, _BATCH):
                if first == _ENTRIES // 2:
                    await victim.close()
                payloads = [f"entry {first + i}".encode().ljust(_ENTRY_BYTES, b".") for i in range(_BATCH)]
                last = writer.append_many(payloads)
                await writer.wait_capacity()
                bar.update(task, completed=first + _BATCH)
            if last is not None:
                await last
        return int(writer.last_confirmed) + 1

    async def _refusal(self, writer: LedgerWriter) -> str:
        try:
            await writer.append(b"too late")
        except (WriterFencedError, LedgerFencedError) as fenced:
            return f"refused: {fenced.what}"
        raise WeirError("a fenced writer was acknowledged")

    async def _read(self, client: LedgerClient, ledger_id: LedgerId) -> int:
        reader = await client.open(ledger_id, recover=False)
        count = 0
        async for entries in reader.stream(EntryId(0)):
            for entry in entries:
                if not bytes(entry.payload).startswith(b"entry %d." % count):
                    raise WeirError(f"entry {count} came back changed")
                count += 1
        await reader.close()
        return count

    async def _repair(self, client: LedgerClient, ledger_id: LedgerId, lost: BookieId) -> None:
        report = await Repair(client.context).repair(ledger_id, [lost], fence_open=False)
        took_over = ", ".join(f"{by} took over entries from {first}" for first, _, by in report.replaced)
        ledger = await client.metadata(ledger_id)
        checked = await check_ledger(client.context, ledger, confirmed=ledger.last_entry)
        if not checked.good:
            raise WeirError("the repaired ledger is not whole")
        self._did("repair", f"{took_over}; every entry has its 3 copies again")

    def _did(self, step: str, result: str) -> None:
        now = self._runtime.clock.monotonic()
        line = Table.grid(padding=(0, 1))
        line.add_column(width=8, justify="right", style="dim", no_wrap=True)
        line.add_column(width=10, style="bold")
        line.add_column()
        line.add_row(f"{now - self._began:.2f} s", step, escape(result))
        self._console.print(line)
        self._began = now
