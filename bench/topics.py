"""How much a known topic costs: creating, listing, memory, restarts, and bytes in the metadata store.

`topics.registry` measures a broker's registry on a store; `topics.serve` starts `weir up` on the folder that the
first left, with everything in it, loads some of the topics, and starts it again.
"""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from random import Random

from bench.case import Measured, Params, case
from bench.stores import rss_mb
from weir.broker.metadata.registry import Registry
from weir.meta import keys
from weir.meta.embedded import open_embedded
from weir.meta.embedded_log import create_log, snapshot_parts
from weir.meta.embedded_recovery import snapshot_path, write_whole
from weir.meta.etcd import EtcdMeta, EtcdSettings
from weir.meta.interfaces import Creation, MetaStore
from weir.meta.key_space import BlockView
from weir.model.errors import MetaUnavailableError
from weir.model.registry import TopicRecord
from weir.model.topics import DEFAULT_NAMESPACE, TopicName
from weir.runtime.interfaces import Runtime
from weir.runtime.real import run
from weir.testing.processes.etcd import EtcdServer
from weir.wire.metadata_log import pack_block
from weir.wire.registry import encode_topic

_READY_S = 300


def _name(number: int) -> TopicName:
    return TopicName(DEFAULT_NAMESPACE, f"orders-of-customer-{number:07d}")


@case("topics.registry")
def registry(params: Params, folder: str) -> Measured:
    """Create the last `made` of `count` topics, so many at a time; list all; look at some at random; open it all
    again. `store`: embedded or etcd (one member, syncs on). `shuffled`: names in no order."""
    count, at_once = params["count"], params.get("at_once", 500)
    numbers = list(range(count))
    if params.get("shuffled"):
        Random(1).shuffle(numbers)
    before, numbers = numbers[: -params["made"]], numbers[-params["made"] :]
    server = EtcdServer(Path(folder) / "etcd", sync=True) if params["store"] == "etcd" else None
    if server is not None:
        server.start()
    measured: Measured = {}

    if server is None:
        _fill_standalone(folder, len(before))

    async def main(runtime: Runtime) -> None:
        meta = await _open(runtime, folder, server)
        known = Registry(meta, runtime)
        await known.start()
        measured["empty_mb"] = rss_mb()
        if server is not None:
            await _fill(meta, before)
        started, cpu = time.perf_counter(), time.process_time()
        for first in range(0, len(numbers), at_once):
            some = numbers[first : first + at_once]
            await asyncio.gather(*(known.topics.create(_name(number)) for number in some))
        measured["create_s"] = len(numbers) / (time.perf_counter() - started)
        measured["create_cpu_us"] = (time.process_time() - cpu) / len(numbers) * 1e6
        measured["rss_mb"] = rss_mb()
        await known.close()
        await meta.close()

    async def again(runtime: Runtime) -> None:
        started, cpu = time.perf_counter(), time.process_time()
        meta = await _open(runtime, folder, server)
        known = Registry(meta, runtime)
        await known.start()
        measured["open_s"] = time.perf_counter() - started
        measured["open_cpu_s"] = time.process_time() - cpu
        started, cpu = time.perf_counter(), time.process_time()
        found = 0
        async for some in known.topic_names(DEFAULT_NAMESPACE):
            found += len(some)
        assert found == count
        measured["list_s"] = time.perf_counter() - started
        measured["list_cpu_s"] = time.process_time() - cpu
        rng = Random(2)
        started = time.perf_counter()
        for _ in range(1000):
            assert await known.topics.look(_name(rng.randrange(count))) is not None
        measured["look_us"] = (time.perf_counter() - started) * 1000
        await known.close()
        await meta.close()

    try:
        run(main)
        size = server.size_bytes() if server is not None else _bytes(Path(folder) / "meta")
        measured["bytes_per_topic"] = size / count
        run(again)
        measured["rss_after_mb"] = rss_mb()
    finally:
        if server is not None:
            server.kill()
    return measured


async def _open(runtime: Runtime, folder: str, server: EtcdServer | None) -> MetaStore:
    if server is None:
        return await open_embedded(runtime, f"{folder}/meta")
    patient = EtcdSettings(endpoints=((server.host, server.port),), request_timeout_s=60.0)
    return EtcdMeta(runtime, patient)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@case("topics.serve")
def serve(params: Params, folder: str) -> Measured:
    """`weir up` on a folder with so many topics: how long until it is ready, how large it is; then so many of them
    are loaded, by a message to each; then again, after a stop and after a kill."""
    count, loaded = params["count"], params["loaded"]
    os.makedirs(f"{folder}/data", exist_ok=True)
    _fill_standalone(f"{folder}/data", count)
    measured: Measured = {}
    node = _Node(folder)
    measured["ready_s"] = node.start()
    measured["ready_mb"] = node.rss_mb()
    started, cpu = time.perf_counter(), node.cpu_s()
    node.load(loaded, count)
    measured["load_s"] = loaded / (time.perf_counter() - started)
    measured["load_cpu_us"] = (node.cpu_s() - cpu) / loaded * 1e6
    measured["loaded_mb"] = node.rss_mb()
    node.end(9)
    measured["after_kill_s"] = node.start()
    measured["after_kill_mb"] = node.rss_mb()
    node.end(15)
    measured["after_stop_s"] = node.start()
    node.end(15)
    return measured


async def _fill(meta: MetaStore, numbers: list[int]) -> None:
    """Topics as the registry would make them, without it: what is measured comes after."""
    for first in range(0, len(numbers), 2000):
        records = [
            TopicRecord(_name(number), created_ms=1_700_000_000_000 + first + at, ordered_id=True)
            for at, number in enumerate(numbers[first : first + 2000])
        ]
        made = [
            Creation(
                keys.topic(record.name),
                encode_topic(record),
                ((keys.topic_id(record.topic_id), str(record.name).encode()),),
            )
            for record in records
        ]
        while True:
            try:
                await meta.create_many(made)
                break
            except MetaUnavailableError:
                await asyncio.sleep(1.0)  # an etcd that others leave no processor; what it made stays made


def _fill_standalone(folder: str, count: int) -> None:
    """The metadata of a standalone's folder with so many topics, as a snapshot has them."""
    items = sorted(_items(count))
    blocks = [
        BlockView(items[first][0], len(items[first : first + 64]), pack_block(items[first : first + 64]), [])
        for first in range(0, len(items), 64)
    ]

    async def main(runtime: Runtime) -> None:
        await runtime.disk.make_dirs(f"{folder}/meta")

        async def parts() -> AsyncIterator[Sequence[bytes]]:
            for part in snapshot_parts(7, 2 * count, blocks, {}, 1000):
                yield part

        await create_log(runtime, f"{folder}/meta", 2 * count + 1)
        await write_whole(runtime.disk, snapshot_path(f"{folder}/meta", 2 * count), parts())

    run(main)


def _items(count: int) -> Iterator[tuple[str, bytes, int]]:
    example = TopicRecord(_name(0), created_ms=1_700_000_000_000, ordered_id=True)
    template, moment, name = encode_topic(example), b"1700000000000", str(example.name).encode()
    for number in range(count):
        created_ms, local = 1_700_000_000_000 + number, _name(number).local
        full = f"persistent://{DEFAULT_NAMESPACE}/{local}".encode()
        digest = hashlib.blake2b(full, digest_size=10).digest()
        yield f"/weir/topic-ids/{(created_ms.to_bytes(6, 'big') + digest).hex()}", full, 2 * number + 1
        record = template.replace(name, full).replace(moment, b"%d" % created_ms)
        yield f"/weir/topics/{DEFAULT_NAMESPACE}/persistent/{local}", record, 2 * number + 2


class _Node:
    """`weir up` in a process of its own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.kafka = ""

    def start(self) -> float:
        """How long it takes until it serves."""
        ready = Path(self._folder) / "ready"
        ready.unlink(missing_ok=True)
        weir = str(Path(sys.executable).parent / "weir")
        command = [weir, "up", "--data", f"{self._folder}/data", "--ready-file", f"{ready}"]
        ports = [f"--set=listeners.{name}=127.0.0.1:0" for name in ("kafka", "pulsar", "amqp", "rocketmq", "http")]
        started = time.perf_counter()
        with (Path(self._folder) / "log").open("ab") as log:
            self._process = subprocess.Popen([*command, *ports], stdout=log, stderr=log)
        while not ready.exists() or not ready.read_text().strip():
            assert self._process.poll() is None, (Path(self._folder) / "log").read_text()[-2000:]
            assert time.perf_counter() - started < _READY_S, "it does not start"
            time.sleep(0.01)
        self.kafka = json.loads(ready.read_text())["kafka"]
        return time.perf_counter() - started

    def rss_mb(self) -> float:
        assert self._process is not None
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def cpu_s(self) -> float:
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def load(self, loaded: int, count: int) -> None:
        """A message to each of so many topics, spread over all."""
        from confluent_kafka import Producer

        failures: list[object] = []
        producer = Producer({"bootstrap.servers": self.kafka, "linger.ms": 50, "message.timeout.ms": 280_000})
        for number in range(0, count, max(1, count // loaded)):
            name = _name(number).local
            producer.produce(name, b"x", on_delivery=lambda error, _: failures.append(error) if error else None)
            producer.poll(0)
        assert producer.flush(280) == 0
        assert not failures, failures[:3]

    def end(self, signal: int) -> None:
        assert self._process is not None
        self._process.send_signal(signal)
        self._process.wait(60)
