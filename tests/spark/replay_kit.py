"""What tests of replays share: selections written by hand, names that nobody else has, and the command."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pulsar

from weir.client.admin import Access
from weir.client.replays import all_replays
from weir.model.definitions import Replay
from weir.model.topics import TopicName
from weir.spark.replay.selection import is_kept, make_selection
from weir.spark.tables.names import WeirCluster
from weir.testing.processes.up import environment
from weir.wire.kafka.records import Record, build_batch

from .conftest import Topics
from .sql_session import patiently


def new_name(what: str) -> str:
    return f"{what}-{time.time_ns()}"


def place_of(topics: Topics) -> WeirCluster:
    return WeirCluster(Access(topics.up.http_url, patience_s=5.0), topics.servers)


def selecting(topics: Topics, place: WeirCluster, partitions: dict[int, list[str]]) -> Callable[[Replay], None]:
    """As Spark would: the messages, with their headers, in the partitions that they go to."""

    def select(replay: Replay) -> None:
        name = make_selection(place, replay, max(partitions) + 1).local
        told = [(b"weir-replay-id", replay.id.encode()), (b"weir-replay-offset", b"7")]
        if replay.subscription is not None:
            told.append((b"weir-replay-subscription", replay.subscription.encode()))
        for partition, values in partitions.items():
            records = [
                Record(at, 1_700_000_000_000 + at, value.encode(), value.encode(), told)
                for at, value in enumerate(values)
            ]
            for record in records:  # batches of one: they are delivered in others
                topics.send(name, build_batch([replace(record, offset_delta=0)]), partition)

    return select


class Command:
    """`weir replay` as a process of its own, with a Spark of its own."""

    def __init__(self, url: str, folder: Path, **variables: str) -> None:
        self._url = url
        self._log = folder / "replay.log"
        self._variables = {**environment(), "XDG_STATE_HOME": str(folder), **variables}

    def start(self, *words: str, stop_at: str = "") -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "weir.cli.main", "replay", *words, "--no-server", "--url", self._url]
        variables = {**self._variables, "WEIR_REPLAY_STOP_AT": stop_at}
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=variables)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


def the_replay(place: WeirCluster, topic: str) -> Replay | None:
    return next(iter(all_replays(place.access, TopicName.parse(topic))), None)


def wait_picking(place: WeirCluster, topic: str) -> None:
    """Until something of a selection may be there."""

    def is_picking() -> bool:
        found = the_replay(place, topic)
        return found is not None and is_kept(place, found)

    patiently(is_picking)


def take(pulsar_url: str, folder: Path, topic: str, subscription: str, count: int) -> list[str]:
    """The next messages of a subscription, each acknowledged. Nobody consumes while something is killed: what is
    twice comes twice."""
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(folder / "pulsar.log"))
    client = pulsar.Client(pulsar_url, logger=quiet, operation_timeout_seconds=60)
    try:
        consumer = client.subscribe(topic, subscription)
        found = [consumer.receive(timeout_millis=120_000) for _ in range(count)]
        for message in found:
            consumer.acknowledge(message)
        consumer.close()
        return [message.data().decode() for message in found]
    finally:
        client.close()
