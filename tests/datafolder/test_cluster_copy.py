"""A copy of a running cluster is one moment of it, and a new cluster made of it has all of that moment."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from weir.datafolder.cluster_backup import copy_cluster, restore_cluster
from weir.datafolder.folder import DataFolder
from weir.datafolder.survey import survey_folder
from weir.ledger.client import LedgerClient
from weir.ledger.write_freeze import HeldMeta, WriteHold
from weir.ledger.writer import LedgerWriter
from weir.meta import keys
from weir.meta.local import MemoryCore, MemoryMeta
from weir.meta.survey import survey_meta
from weir.model.errors import ConfigError, PeerError
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import LedgerState, Quorum
from weir.runtime.interfaces import Runtime
from weir.server.remote_storage import LONGEST_S, BackupHold
from weir.testing.processes.cluster import ClusterProcess
from weir.testing.processes.up import environment
from weir.testing.storage.fakes import FakeBookiePool
from weir.testing.world.world import World, simulate
from weir.wire.metadata import BookieInfo, decode_ledger, encode_bookie_info


@dataclass
class Node:
    """A broker, as far as it writes."""

    meta: HeldMeta
    ledgers: LedgerClient
    holding: BackupHold


class Cluster:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.core = MemoryCore(runtime.clock)
        self.bookies = FakeBookiePool()

    async def start(self) -> "Cluster":
        meta = self.store()
        for number in range(3):
            info = BookieInfo(BookieId(f"b{number}"), "nowhere", 1)
            await meta.put(keys.bookie_writable(info.bookie_id), encode_bookie_info(info))
        return self

    def store(self) -> MemoryMeta:
        return MemoryMeta(self.core, self.runtime)

    async def client(self) -> LedgerClient:
        client = LedgerClient(self.runtime, self.store(), self.bookies)
        await client.start()
        return client

    async def node(self, name: str) -> Node:
        store, hold = self.store(), WriteHold()
        meta = HeldMeta(store, hold.over)
        ledgers = LedgerClient(self.runtime, meta, self.bookies, hold=hold)
        await ledgers.start()
        await store.put(keys.broker(name), b"{}")
        holding = BackupHold(self.runtime, store, ledgers, name)
        holding.start()
        return Node(meta, ledgers, holding)


@pytest.fixture
def run() -> Callable[[Callable[[Cluster], Awaitable[None]]], None]:
    def run_it(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
        async def main(world: World) -> None:
            async def on_node(runtime: Runtime) -> None:
                await scenario(await Cluster(runtime).start())

            await world.node("all").start(on_node)

        simulate(1, main)

    return run_it


async def numbers_in(runtime: Runtime, path: str, ledger_id: LedgerId) -> list[int]:
    """What a ledger of the copy has."""
    folder, found = DataFolder(path), dict[int, int]()

    async def take(ledger: LedgerId, batch: list) -> None:
        if ledger == ledger_id:
            found.update((entry, int(bytes(data)[-8:])) for entry, data in batch)

    meta = await survey_meta(runtime.disk, folder.meta)
    report = await survey_folder(runtime, folder, meta, take=take)
    assert not meta.damages
    assert not report.losses
    assert decode_ledger(meta.items[keys.ledger(ledger_id)].value).state is LedgerState.CLOSED
    return [found[entry] for entry in sorted(found)]


def test_what_came_of_a_write_is_in_a_copy_only_if_the_write_is(run: Callable) -> None:
    """A broker writes a number; when that is acknowledged, another one writes it, too, then the metadata."""

    async def scenario(cluster: Cluster) -> None:
        one, other = await cluster.node("one"), await cluster.node("other")
        first: LedgerWriter = await one.ledgers.create(Quorum(3, 2, 2))
        second: LedgerWriter = await other.ledgers.create(Quorum(2, 2, 2))
        acknowledged = 0

        async def work() -> None:
            nonlocal acknowledged
            for number in range(100_000):
                await first.append(b"%08d" % number)
                await second.append(b"%08d" % number)
                await other.meta.put("/weir/said", str(number).encode())
                acknowledged = number
                await cluster.runtime.clock.sleep(0.003)

        working = asyncio.get_running_loop().create_task(work())
        client = await cluster.client()
        for copy in ("/copies/1", "/copies/2", "/copies/3"):
            await cluster.runtime.clock.sleep(0.1)
            before = acknowledged
            report = await copy_cluster(cluster.runtime, client, copy)
            assert acknowledged > before, "writes go on"
            firsts = await numbers_in(cluster.runtime, copy, first.ledger_id)
            seconds = await numbers_in(cluster.runtime, copy, second.ledger_id)
            said = int((await survey_meta(cluster.runtime.disk, f"{copy}/meta")).items["/weir/said"].value)
            assert firsts == list(range(len(firsts)))
            assert before <= said <= seconds[-1] <= firsts[-1]
            assert report.ledgers == 2
        working.cancel()
        assert not (await cluster.store().list(keys.BACKUP)).items, "nothing of it stays"

    run(scenario)


def test_no_ledger_goes_while_it_is_copied_and_all_that_should_go_afterwards(run: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.node("one")
        writer = await node.ledgers.create(Quorum(2, 2, 2))
        await writer.append(b"%08d" % 7)
        await writer.close()
        store = cluster.store()
        lease = await store.lease(10)
        await store.put(keys.BACKUP_REQUEST, b'{"id": "x", "step": "hold"}', lease=lease)
        while await store.get(keys.backup_answer("x", "hold", "one", 0)) is None:
            await cluster.runtime.clock.sleep(0.01)
        deleting = asyncio.get_running_loop().create_task(node.ledgers.delete(writer.ledger_id))
        await deleting
        assert await store.get(keys.ledger(writer.ledger_id)) is not None
        await lease.revoke()  # whoever made the copy is gone
        while await store.get(keys.ledger(writer.ledger_id)) is not None:
            await cluster.runtime.clock.sleep(0.1)

    run(scenario)


def test_writes_wait_only_so_long_whatever_becomes_of_the_copy(run: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.node("one")
        writer = await node.ledgers.create(Quorum(2, 2, 2))
        store = cluster.store()
        await store.put(keys.BACKUP_REQUEST, b'{"id": "x", "step": "hold"}')
        while await store.get(keys.backup_answer("x", "hold", "one", 0)) is None:
            await cluster.runtime.clock.sleep(0.01)
        began = cluster.runtime.clock.monotonic()
        await writer.append(b"waits")
        assert LONGEST_S / 2 < cluster.runtime.clock.monotonic() - began <= LONGEST_S + 1
        await store.put(keys.BACKUP_REQUEST, b'{"id": "x", "step": "copy"}')
        while (said := await store.get(keys.backup_answer("x", "copy", "one", 0))) is None:
            await cluster.runtime.clock.sleep(0.01)
        assert b'"unbroken": false' in said.value

    run(scenario)


def test_a_broker_that_does_not_answer_is_named(run: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.store().put(keys.broker("deaf"), b"{}")
        with pytest.raises(PeerError, match="broker deaf does not hold its writes"):
            await copy_cluster(cluster.runtime, await cluster.client(), "/copy")

    run(scenario)


def test_a_copy_is_brought_into_a_new_cluster_with_as_many_copies_as_are_wanted(run: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.node("one")
        open_one = await node.ledgers.create(Quorum(3, 2, 2))
        for number in range(50):
            await open_one.append(b"%08d" % number)
        abandoned = await node.ledgers.create(Quorum(2, 2, 2))
        await abandoned.append(b"%08d" % 1)
        await abandoned.abandon()
        await node.meta.put("/weir/topics/public/default/persistent/t", b"{}")
        await copy_cluster(cluster.runtime, await cluster.client(), "/copy")
        new = await Cluster(cluster.runtime).start()
        client = await new.client()
        assert await restore_cluster(cluster.runtime, client, "/copy", 2) == 2
        reader = await client.open(open_one.ledger_id)
        assert bytes((await reader.read(EntryId(49), EntryId(49)))[0].payload) == b"%08d" % 49
        metadata = await client.metadata(open_one.ledger_id)
        assert (metadata.state, metadata.last_entry, metadata.length) == (LedgerState.CLOSED, 49, 400)
        assert len(metadata.bookies()) == 2
        assert (await client.metadata(abandoned.ledger_id)).last_entry == 0
        assert await new.store().get("/weir/topics/public/default/persistent/t") is not None
        assert await new.store().get(keys.broker("one")) is None
        with pytest.raises(ConfigError, match="holds ledgers already"):
            await restore_cluster(cluster.runtime, client, "/copy", 2)
        with pytest.raises(ConfigError, match="brokers run"):
            await restore_cluster(cluster.runtime, await cluster.client(), "/copy", 2)

    run(scenario)


# --- with processes ---------------------------------------------------------------------------------------------


def weir(*arguments: str) -> str:
    command = [sys.executable, "-m", "weir.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
@pytest.mark.soak  # two clusters of processes, one after the other
def test_a_cluster_is_copied_by_one_command_under_load_and_restored_by_one(tmp_path: Path) -> None:
    before = ClusterProcess(tmp_path / "before", "--brokers", "2", "--bookies", "2")
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    before.start()
    try:
        producer, acknowledged = Producer({"bootstrap.servers": before.kafka, "acks": "all"}), []

        def send(first: int, end: int) -> None:
            for number in range(first, end):
                producer.produce(
                    f"t{number % 3}",
                    str(number),
                    on_delivery=lambda bad, one: bad or acknowledged.append(one.value()),
                )
            producer.poll(0)

        send(0, 3000)
        producer.flush()
        sure = set(acknowledged)
        send(3000, 6000)
        said = weir("backup", str(before.data), "--to", str(tmp_path / "copy.tar"))
        assert "writes paused for" in said
        producer.flush()
        assert len(acknowledged) == 6000
    finally:
        before.close()
    assert "unchanged since the copy" in weir("backup", "--check", str(tmp_path / "copy.tar"))
    storage = ClusterProcess(tmp_path / "after", "--brokers", "0", "--bookies", "2").start()
    try:
        assert "start the brokers of the cluster now" in weir(
            "restore", str(tmp_path / "copy.tar"), "--data", str(storage.data)
        )
        assert storage.stop() == 0
    finally:
        storage.close()
    after = ClusterProcess(tmp_path / "after", "--brokers", "2", "--bookies", "2").start()
    try:
        consumer = Consumer(
            {"bootstrap.servers": after.kafka, "group.id": "g", "auto.offset.reset": "earliest"}
            | {"enable.partition.eof": True}
        )
        consumer.subscribe(["t0", "t1", "t2"])
        found: list[bytes] = []
        ends: set[str] = set()
        while len(ends) < 3:
            message = consumer.poll(60)
            assert message is not None
            if message.error():
                ends.add(message.topic())
            else:
                found.append(message.value())
        consumer.close()
        assert sure <= set(found)
        assert len(found) == len(set(found))
    finally:
        after.close()
