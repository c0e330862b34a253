"""Other clusters that change: topics that grow, that are made again, that were never told of, and sinks alike."""

from pathlib import Path
from typing import Any

import psycopg
import pulsar
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from weir.client.admin import ask_v2
from weir.client.kafka.cluster import Cluster
from weir.connect.runner import clean_up, make_task
from weir.connect.writer import delete_topic
from weir.model.errors import ConnectorError
from weir.testing.processes.postgresql import PostgresqlServer

from .conftest import Running, Weir

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("connect")]


def from_kafka(other: Weir, topic: str, **more: Any) -> dict[str, Any]:
    said = {"type": "kafka", "bootstrap_servers": other.up.kafka, "topics": [topic], "prefix": "in.", **more}
    return {"source": said}


def to_kafka(other: Weir, topic: str, **more: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "sink": {"type": "kafka", "bootstrap_servers": other.up.kafka, "prefix": "out.", **more},
    }


def grow(weir: Weir, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": weir.up.kafka, "log_level": 0})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(60)


def places(weir: Weir, topic: str) -> list[tuple[Any, bytes]]:
    return sorted((one.partition, bytes(one.value or b"")) for _, one in weir.messages(topic))


def test_what_comes_while_no_runner_runs_is_carried_though_it_began_at_the_end(
    weir: Weir, other: Weir, unique: str
) -> None:
    other.create(unique)
    other.fill(unique, [(None, b"before")])
    said = from_kafka(other, unique, start="latest")
    with weir.task(unique, said) as running:
        running.steps()
    other.fill(unique, [(None, b"meanwhile")])
    with weir.task(unique, said) as running:
        running.until(lambda: weir.messages(f"in.{unique}"))
        running.steps()
    assert places(weir, f"in.{unique}") == [(0, b"meanwhile")]


@pytest.mark.parametrize("side", ["source", "sink"])
def test_partitions_that_come_later_come_here_too(weir: Weir, other: Weir, unique: str, side: str) -> None:
    here, there = (other, weir) if side == "source" else (weir, other)
    copy = f"in.{unique}" if side == "source" else f"out.{unique}"
    here.create(unique)
    here.fill(unique, [(b"k", b"first")])
    with weir.task(unique, from_kafka(other, unique) if side == "source" else to_kafka(other, unique)) as running:
        running.until(lambda: len(there.messages(copy)) == 1)
        grow(here, unique, 3)
        here.fill(unique, [(b"k", b"second")], 2)
        running.until(lambda: len(there.messages(copy)) == 2)
    assert places(there, copy) == [(0, b"first"), (2, b"second")]


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("side", ["source", "sink", "files", "postgresql"])
def test_a_topic_that_was_made_again_is_told_and_not_waited_for_in_silence(
    weir: Weir, other: Weir, postgresql: PostgresqlServer, tmp_path: Path, unique: str, side: str, count: int
) -> None:
    """However many messages the new one has: those up to the position would be missed."""
    here = other if side == "source" else weir
    table = {"type": "postgresql", "dsn": postgresql.dsn, "table": unique, "mode": "insert"}
    said = {
        "source": from_kafka(other, unique),
        "sink": to_kafka(other, unique),
        "files": {"topic": unique, "sink": {"type": "files", "path": str(tmp_path), "max_age": "0ms"}},
        "postgresql": {"topic": unique, "sink": table},
    }[side]
    with psycopg.connect(postgresql.dsn) as database:
        database.execute(f'CREATE TABLE "{unique}" (n int)')
    here.create(unique)
    here.fill(unique, [(None, b'{"n": %d}' % number) for number in range(5)])
    wrong = pytest.raises(ConnectorError, match=r"was made again.*add it again")
    with weir.task(unique, said) as running:
        running.until(lambda: running.task.status.position)
        with Cluster(here.place.kafka) as cluster:
            delete_topic(cluster, unique)
        here.create(unique)
        here.fill(unique, [(None, b'{"n": 9}')] * count)
        with wrong:
            running.steps()
    with wrong, weir.task(unique, said) as running:
        running.steps()


def test_sinks_of_one_name_from_two_weirs_do_not_share_positions_and_leave_none(
    weir: Weir, other: Weir, unique: str
) -> None:
    """Both write to the same cluster, as places that are gathered in one do."""
    jobs = []
    for place, count in ((weir, 3), (other, 5)):
        place.create(unique)
        place.fill(unique, [(None, b"v%d" % number) for number in range(count)])
        jobs.append(place.job(unique, to_kafka(other, unique), f"{unique}-{count}"))
        with Running(make_task(jobs[-1])) as running:
            running.until(lambda running=running: running.task.status.lag == 0)
    assert len(other.messages(f"out.{unique}")) == 8
    for job in jobs:
        clean_up(job)
    with Cluster(other.place.kafka) as cluster:
        assert not [name for name in cluster.topics() if name.startswith(f"connect-{unique}")]


def test_partitions_of_another_pulsar_that_come_later_are_read(
    weir: Weir, other: Weir, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.connect.connectors.pulsar._LOOK_S", 0.0)
    ask_v2(other.place.access, "PUT", f"persistent/public/default/{unique}/partitions", 1)
    client = pulsar.Client(other.up.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))

    def send(partition: int, value: bytes) -> None:
        client.create_producer(f"persistent://public/default/{unique}-partition-{partition}").send(value)

    send(0, b"first")
    said = {"source": {"type": "pulsar", "service_url": other.up.pulsar_url, "topics": [unique]}}
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.messages(unique)) == 1)
        ask_v2(other.place.access, "POST", f"persistent/public/default/{unique}/partitions", 2)
        send(1, b"second")
        running.until(lambda: len(weir.messages(unique)) == 2)
    client.close()
    assert places(weir, unique) == [(0, b"first"), (1, b"second")]


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("stopped", [True, False])
def test_a_topic_of_another_pulsar_that_was_created_again_comes_from_its_start(
    weir: Weir, other: Weir, unique: str, start: str, stopped: bool
) -> None:
    about = {"type": "pulsar", "service_url": other.up.pulsar_url, "topics": [unique], "start": start}
    values = [(None, b"%d" % number) for number in range(5)]
    other.create(unique)
    with weir.task(unique, {"source": about}) as running:
        running.steps()
        other.fill(unique, values)
        running.until(lambda: len(weir.messages(unique)) == 5)
        if not stopped:
            other.create_again(unique)
            other.fill(unique, values * 2)
            running.until(lambda: len(weir.messages(unique)) == 15)
    if stopped:
        other.create_again(unique)
        other.fill(unique, values * 2)
        with weir.task(unique, {"source": about}) as running:
            running.until(lambda: len(weir.messages(unique)) == 15)
    assert [bytes(one.value or b"") for _, one in weir.messages(unique)] == [value for _, value in values * 3]


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_topic_that_was_created_again_goes_to_another_pulsar_from_its_start(
    weir: Weir, other: Weir, unique: str, start: str
) -> None:
    """Its offsets are sequence ids there, of which the producer has used the first ones for the deleted topic."""
    about = {"type": "pulsar", "service_url": other.up.pulsar_url, "start": start}
    values = [(None, b"%d" % number) for number in range(5)]
    weir.create(unique)
    with weir.task(unique, {"topic": unique, "sink": about}) as running:
        running.steps()
        weir.fill(unique, values)
        running.until(lambda: len(other.messages(unique)) == 5)
    weir.create_again(unique)
    weir.fill(unique, values * 2)
    with weir.task(unique, {"topic": unique, "sink": about}) as running:
        running.until(lambda: running.task.status.lag == 0)
    assert [bytes(one.value or b"") for _, one in other.messages(unique)] == [value for _, value in values * 3]
