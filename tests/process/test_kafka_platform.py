"""Kafka Connect, Kafka Streams and MirrorMaker 2, as they come from Maven, against Weir; every record counted."""

import json
import socket
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from bench.kafka_platform import ARTIFACTS
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from weir.testing.processes.up import UpProcess

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(900)]

_SOURCES = Path(__file__).parent / "java"
_PATIENCE_S = 240.0
_JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Java:
    """A program of Kafka's own, with its words in a file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        if reason := ARTIFACTS.missing(patience_s=120):
            pytest.skip(reason)
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ["java", *_JVM, "-cp", ARTIFACTS.classpath, *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )

    def said(self) -> str:
        return self._log.read_text()

    def until(self, reached: Callable[[], Any], what: str) -> Any:
        """Wait for a condition, which is asked again and again while the program runs."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (found := reached()):
            assert self._process.poll() is None, f"it ended: {self.said()[-6000:]}"
            assert time.monotonic() < deadline, f"{what} did not come: {self.said()[-6000:]}"
            time.sleep(0.05)
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        self._process.terminate()
        return self._process.wait(_PATIENCE_S)


class Programs:
    """Those that a test has started; none outlives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[Java] = []

    def start(self, name: str, *arguments: str) -> Java:
        self._started.append(Java(self.folder / f"{name}.log", *arguments))
        return self._started[-1]

    def properties(self, name: str, settings: Mapping[str, object]) -> str:
        file = self.folder / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return str(file)

    def close(self) -> None:
        for one in self._started:
            one.kill()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    found = Programs(tmp_path)
    yield found
    found.close()


def _weir(factory: pytest.TempPathFactory, name: str) -> Iterator[UpProcess]:
    process = UpProcess(factory.mktemp(name)).start()
    try:
        yield process
    finally:
        process.close()
        subprocess.run(["rm", "-rf", str(process.data)], check=True)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    yield from _weir(tmp_path_factory, "weir")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    yield from _weir(tmp_path_factory, "other")


def create(up: UpProcess, topic: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": up.kafka})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)


def produce(up: UpProcess, topic: str, values: list[str], **more: Any) -> None:
    producer = Producer({"bootstrap.servers": up.kafka})
    for value in values:
        producer.produce(topic, value.encode(), **more)
    assert producer.flush(30) == 0


def records(up: UpProcess, topic: str) -> list[Any]:
    """All that is committed, partition by partition."""
    settings = {"bootstrap.servers": up.kafka, "group.id": "look", "enable.partition.eof": True}
    reader = Consumer({**settings, "enable.auto.commit": False})
    found: list[Any] = []
    try:
        for index in reader.list_topics(topic, 30).topics[topic].partitions:
            reader.assign([TopicPartition(topic, index, OFFSET_BEGINNING)])
            while (one := reader.poll(_PATIENCE_S)) is not None and one.error() is None:
                found.append(one)
            assert one is not None
            assert one.error().code() == KafkaError._PARTITION_EOF, one.error()
        return found
    finally:
        reader.close()


def values(up: UpProcess, topic: str) -> list[str]:
    return [one.value().decode() for one in records(up, topic)]


def topics(up: UpProcess) -> set[str]:
    return set(AdminClient({"bootstrap.servers": up.kafka}).list_topics(timeout=30).topics)


def cleanup_policy(up: UpProcess, topic: str) -> str:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": up.kafka})
    told = admin.describe_configs([resource])[resource].result(30)
    return str(told["cleanup.policy"].value)


_PLAIN = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "offset.flush.interval.ms": 200,
}


def test_connect_standalone_carries_a_file_into_a_topic_and_the_topic_into_a_file(
    up: UpProcess, programs: Programs
) -> None:
    create(up, "standalone")
    source, sink = programs.folder / "in.txt", programs.folder / "out.txt"
    lines = [f"line {number}" for number in range(200)]
    source.write_text("\n".join(lines) + "\n")
    worker = {
        **_PLAIN,
        "bootstrap.servers": up.kafka,
        "offset.storage.file.filename": programs.folder / "offsets",
        "listeners": f"http://127.0.0.1:{free_port()}",
        "consumer.auto.offset.reset": "earliest",
    }
    file = "org.apache.kafka.connect.file"
    reads = {"name": "reads", "connector.class": f"{file}.FileStreamSourceConnector", "file": source}
    writes = {"name": "writes", "connector.class": f"{file}.FileStreamSinkConnector", "file": sink}
    program = programs.start(
        "standalone",
        "org.apache.kafka.connect.cli.ConnectStandalone",
        programs.properties("worker", worker),
        programs.properties("reads", {**reads, "topic": "standalone"}),
        programs.properties("writes", {**writes, "topics": "standalone"}),
    )
    program.until(lambda: sink.exists() and len(sink.read_text().splitlines()) >= len(lines), "the file")
    with source.open("a") as more:
        more.write("one more\n")
    program.until(lambda: sink.read_text().endswith("one more\n"), "the last line")
    assert sink.read_text().splitlines() == [*lines, "one more"]
    assert values(up, "standalone") == [*lines, "one more"]
    program.stop()


class Rest:
    """The REST of a worker. It refuses while workers agree on who does what, and a busy one takes its time: what
    is asked is fit to be asked again."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """None: not now. What is asked for and empty is an empty text."""
        data = None if body is None else json.dumps(body).encode()
        asked = Request(f"{self._url}/{path}", data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(asked, timeout=60) as told:
                return json.loads(told.read() or b'""')
        except HTTPError as refused:
            if refused.code in (404, 409, 500, 503):
                return None
            raise
        except (OSError, HTTPException):  # it is not there yet, or did not answer in time
            return None

    def runs(self, name: str) -> bool:
        told = self.ask("GET", f"connectors/{name}/status")
        if told is None:
            return False
        states = [told["connector"]["state"], *(task["state"] for task in told["tasks"])]
        assert "FAILED" not in states, told
        return len(states) > 1 and set(states) == {"RUNNING"}

    def put(self, name: str, config: Mapping[str, object]) -> bool:
        said = {key: str(value) for key, value in config.items()}
        return self.ask("PUT", f"connectors/{name}/config", said) is not None

    def gone(self, name: str) -> bool:
        """Ask it to go; one that is not listed has gone, maybe by a request whose answer was lost."""
        self.ask("DELETE", f"connectors/{name}")
        listed = self.ask("GET", "connectors")
        return listed is not None and name not in listed


def test_connect_distributed_keeps_its_state_in_topics_and_survives_a_killed_worker(
    up: UpProcess, programs: Programs
) -> None:
    create(up, "distributed", 2)
    source, sink = programs.folder / "in.txt", programs.folder / "out.txt"
    source.write_text("".join(f"line {number}\n" for number in range(100)))

    def worker(number: int) -> tuple[Java, Rest]:
        port = free_port()
        settings = {
            **_PLAIN,
            "bootstrap.servers": up.kafka,
            "group.id": "workers",
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "rebalance.timeout.ms": 6000,
            "scheduled.rebalance.max.delay.ms": 0,
            "listeners": f"http://127.0.0.1:{port}",
            "exactly.once.source.support": "enabled",
            "consumer.auto.offset.reset": "earliest",
            **{f"{kind}.storage.topic": f"connect-{kind}" for kind in ("config", "offset", "status")},
            **{f"{kind}.storage.replication.factor": 1 for kind in ("config", "offset", "status")},
            "offset.storage.partitions": 2,
            "status.storage.partitions": 1,
        }
        file = programs.properties(f"worker{number}", settings)
        return programs.start(f"worker{number}", "org.apache.kafka.connect.cli.ConnectDistributed", file), Rest(
            port
        )

    program, rest = worker(1)
    program.until(lambda: rest.ask("GET", "connectors") is not None, "the REST")
    file = "org.apache.kafka.connect.file"
    reads = {"connector.class": f"{file}.FileStreamSourceConnector", "file": source, "topic": "distributed"}
    writes = {"connector.class": f"{file}.FileStreamSinkConnector", "file": sink, "topics": "distributed"}
    program.until(lambda: rest.put("reads", reads), "the source")
    program.until(lambda: rest.put("writes", writes), "the sink")
    program.until(lambda: rest.runs("reads") and rest.runs("writes"), "both connectors")
    program.until(lambda: sink.exists() and len(sink.read_text().splitlines()) >= 100, "the first lines")
    for topic in ("connect-config", "connect-offset", "connect-status"):
        assert cleanup_policy(up, topic) == "compact"
    # The source commits its positions with what it read; the next one begins there.
    program.until(lambda: (rest.ask("GET", "connectors/reads/offsets") or {}).get("offsets"), "the position")
    program.kill()
    with source.open("a") as more:
        more.write("".join(f"line {number}\n" for number in range(100, 150)))
    program, rest = worker(2)
    program.until(lambda: rest.runs("reads") and rest.runs("writes"), "both connectors again")
    wanted = Counter(f"line {number}" for number in range(150))
    program.until(lambda: set(sink.read_text().splitlines()) == set(wanted), "all lines")
    assert Counter(values(up, "distributed")) == wanted
    program.until(lambda: rest.gone("reads") and rest.gone("writes"), "the end of both")
    program.stop()


def test_streams_counts_words_exactly_once_over_a_kill(up: UpProcess, programs: Programs) -> None:
    create(up, "lines", 2)
    create(up, "words", 2)

    def count(number: int) -> Java:
        return programs.start(
            f"count{number}",
            str(_SOURCES / "WordCount.java"),
            up.kafka,
            "counting",
            str(programs.folder / "state"),
        )

    def counts() -> dict[str, int]:
        found = records(up, "words")
        return {one.key().decode(): struct.unpack(">q", one.value())[0] for one in found}

    first = count(1)
    produce(up, "lines", ["the quick brown fox", "the lazy dog"] * 50)
    first.until(lambda: counts().get("the") == 100, "the first counts")
    first.kill()
    produce(up, "lines", ["the end"] * 25)
    # What the killed one has left open keeps others waiting until it times out; the state is read from its topic.
    second = count(2)
    second.until(lambda: counts().get("end") == 25 and counts().get("the") == 125, "the last counts")
    assert counts() == {"the": 125, "quick": 50, "brown": 50, "fox": 50, "lazy": 50, "dog": 50, "end": 25}
    found = topics(up)
    assert {"counting-by-word-repartition", "counting-counts-changelog"} <= found
    assert cleanup_policy(up, "counting-counts-changelog") == "compact"
    second.kill()


def test_mirrormaker_mirrors_one_weir_to_another_with_heartbeats_and_checkpoints(
    up: UpProcess, other: UpProcess, programs: Programs
) -> None:
    create(up, "mirrored", 3)
    produce(up, "mirrored", [f"value {number}" for number in range(90)], key=b"k", headers=[("h", b"1")])
    group = Consumer({"bootstrap.servers": up.kafka, "group.id": "readers", "auto.offset.reset": "earliest"})
    group.subscribe(["mirrored"])
    seen = 0
    while seen < 40:
        seen += sum(one.error() is None for one in group.consume(40 - seen, 0.5))
    group.commit(asynchronous=False)
    settings = {
        "clusters": "a, b",
        "a.bootstrap.servers": up.kafka,
        "b.bootstrap.servers": other.kafka,
        "a->b.enabled": "true",
        "b->a.enabled": "false",
        "a->b.topics": "mirrored",
        "a->b.groups": "readers",
        "replication.factor": 1,
        **{f"{kind}.storage.replication.factor": 1 for kind in ("config", "offset", "status")},
        **{f"{kind}.topic.replication.factor": 1 for kind in ("checkpoints", "heartbeats", "offset-syncs")},
        **{f"{kind}.replication.factor": 1 for kind in ("offset.storage", "status.storage", "config.storage")},
        "offset-syncs.topic.replication.factor": 1,
        "emit.heartbeats.interval.seconds": 1,
        "emit.checkpoints.interval.seconds": 1,
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": 1,
        "refresh.topics.interval.seconds": 1,
        "refresh.groups.interval.seconds": 1,
        "offset.lag.max": 0,
        "dedicated.mode.enable.internal.rest": "false",
    }
    program = programs.start(
        "mirror", "org.apache.kafka.connect.mirror.MirrorMaker", programs.properties("mirror", settings)
    )
    program.until(lambda: "a.mirrored" in topics(other) and len(values(other, "a.mirrored")) >= 90, "the copies")
    produce(up, "mirrored", [f"value {number}" for number in range(90, 100)], key=b"k", headers=[("h", b"1")])
    program.until(lambda: len(values(other, "a.mirrored")) >= 100, "the late ones")

    def places(up: UpProcess, topic: str) -> list[tuple[Any, ...]]:
        return [
            (one.partition(), one.offset(), one.key(), one.value(), one.headers(), one.timestamp())
            for one in records(up, topic)
        ]

    assert places(other, "a.mirrored") == places(up, "mirrored")

    # Positions of the group are carried over: never beyond what it has read, and maybe a little before it.
    def carried() -> bool:
        copy = Consumer({"bootstrap.servers": other.kafka, "group.id": "readers"})
        try:
            told = copy.committed([TopicPartition("a.mirrored", index) for index in range(3)], 30)
            return 0 < max(one.offset for one in told) <= 40
        finally:
            copy.close()

    group.close()
    program.until(carried, "the group's position")
    assert {"heartbeats", "a.checkpoints.internal"} <= topics(other)
    program.until(
        lambda: values_of_any(other, "heartbeats") and values_of_any(other, "a.checkpoints.internal"), "both"
    )
    program.stop()


def values_of_any(up: UpProcess, topic: str) -> bool:
    return bool(records(up, topic))
