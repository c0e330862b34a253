"""Two Weirs, a PostgreSQL and an S3-compatible server for all of these tests; every test has names of its own."""

import json
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from weir.client.admin import Access
from weir.client.connectors import all_connectors
from weir.client.kafka.cluster import Cluster, Partition
from weir.client.kafka.fetch import EARLIEST, LATEST, list_offsets
from weir.client.kafka.produce import Sender
from weir.client.weir_cluster import Place
from weir.connect.definitions import parse, parse_name
from weir.connect.reader import read_piece
from weir.connect.runner import make_task
from weir.connect.task import Job, Message, Task
from weir.connect.writer import delete_topic, ensure_topic
from weir.testing.processes.postgresql import PostgresqlServer
from weir.testing.processes.s3 import S3Server
from weir.testing.processes.up import UpProcess
from weir.wire.kafka.records import Record, build_batch

from .runner_kit import Cli, RunnerProcess, RunnerThread

#: Steps after which what is waited for has not come.
_STEPS = 400
_NUMBERS = count()


def _started(factory: pytest.TempPathFactory, name: str) -> Iterator[UpProcess]:
    folder = factory.mktemp(name)
    process = UpProcess(folder).start()
    try:
        yield process
    finally:
        process.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    yield from _started(tmp_path_factory, "weir")


@pytest.fixture(scope="session")
def other_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    yield from _started(tmp_path_factory, "other")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    server = PostgresqlServer.start()
    if server is None:
        pytest.skip("there is no PostgreSQL here")
    yield server
    server.close()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server.start(tmp_path_factory.mktemp("s3"))
    if server is None:
        pytest.skip("there is no S3-compatible server here")
    yield server
    server.close()


@pytest.fixture
def database(postgresql: PostgresqlServer) -> Iterator["psycopg.Connection[Any]"]:
    with psycopg.connect(postgresql.dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def unique() -> str:
    return f"t{next(_NUMBERS)}-{uuid4().hex[:6]}"


class Weir:
    """One of the two, as tests use it."""

    def __init__(self, up: UpProcess) -> None:
        self.up = up
        self.place = Place.find(Access(up.http_url, patience_s=5.0))

    def create(self, topic: str, partitions: int = 1) -> str:
        with Cluster(self.place.kafka) as cluster:
            ensure_topic(cluster, topic, partitions)
        return topic

    def create_again(self, topic: str, partitions: int = 1) -> str:
        """Delete the topic and create another one of its name."""
        with Cluster(self.place.kafka) as cluster:
            delete_topic(cluster, topic)
        return self.create(topic, partitions)

    def fill(self, topic: str, messages: list[tuple[Any, Any]], partition: int = 0, **more: Any) -> None:
        """Keys and values, one batch of them."""
        records = [
            Record(at, 1_700_000_000_000 + at, key, value, **more) for at, (key, value) in enumerate(messages)
        ]
        with Cluster(self.place.kafka) as cluster:
            sender = Sender(cluster)
            sender.send({Partition(topic, partition): build_batch(records)})
            sender.flush()

    def messages(self, topic: str) -> list[tuple[int, Message]]:
        """All that are committed, partition by partition."""
        found: list[tuple[int, Message]] = []
        with Cluster(self.place.kafka) as cluster:
            for partition in cluster.partitions([topic]):
                at = list_offsets(cluster, {partition: EARLIEST})[partition]
                end = list_offsets(cluster, {partition: LATEST})[partition]
                while at < end:
                    piece = read_piece(cluster, partition, at)
                    found += piece.messages
                    at = piece.next_offset
        return found

    def values(self, topic: str) -> list[Any]:
        return [json.loads(bytes(one.value)) for _, one in self.messages(topic) if one.value is not None]

    def job(self, name: str, said: Mapping[str, Any], connector_id: str = "") -> Job:
        definition = parse(parse_name(name), json.dumps(said))
        return Job(self.place, definition, connector_id or name)

    def task(self, name: str, said: Mapping[str, Any]) -> "Running":
        """A new one of this definition, as a runner that was started again has it."""
        return Running(make_task(self.job(name, said)))


class Running:
    def __init__(self, task: Task) -> None:
        self.task = task

    def __enter__(self) -> "Running":
        self.task.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.task.close()

    def until(self, reached: Callable[[], Any]) -> Any:
        """Step until it is so."""
        for _ in range(_STEPS):
            self.task.step()
            if found := reached():
                return found
        raise AssertionError("it did not come")

    def steps(self, number: int = 3) -> None:
        for _ in range(number):
            self.task.step()


@pytest.fixture(scope="session")
def weir(up: UpProcess) -> Weir:
    return Weir(up)


@pytest.fixture(scope="session")
def other(other_up: UpProcess) -> Weir:
    return Weir(other_up)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "files"
    found.mkdir()
    return found


@pytest.fixture
def running(weir: Weir, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunnerThread]:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    found = RunnerThread(weir.place)
    yield found
    found.end()


@pytest.fixture
def weir_connect(weir: Weir) -> Iterator[Cli]:
    found = Cli(weir.place)
    yield found
    for one in all_connectors(weir.place.access):
        found("remove", one.connector.name.local)


@pytest.fixture
def runner(weir: Weir, tmp_path: Path) -> Iterator[RunnerProcess]:
    found = RunnerProcess(weir.place, tmp_path / "runner.log")
    yield found
    found.end(signal.SIGTERM)
