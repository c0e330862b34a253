"""A cluster's folder keeps what nodes there are; settings of brokers are checked before anything starts."""

import itertools
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from weir.model.errors import AddressInUseError, ConfigError
from weir.model.ledger import Quorum
from weir.server.cluster_up import cluster_secret_file, plan_cluster
from weir.server.config import part_settings
from weir.server.config.load import load
from weir.server.supervisor import HeldPorts


@pytest.fixture
def ports() -> Iterator[HeldPorts]:
    held = HeldPorts()
    yield held
    held.close()


def test_names_and_ports_stay_and_more_are_added(tmp_path: Path, ports: HeldPorts) -> None:
    first = plan_cluster(tmp_path, ports, brokers=2, bookies=2, etcd_members=1)
    again = plan_cluster(tmp_path, ports, brokers=3, bookies=3, etcd_members=1)
    assert again.brokers[:2] == first.brokers
    assert again.bookies[:2] == first.bookies
    assert again.etcd == first.etcd
    chosen = [port for b in again.brokers for port in (b.kafka, b.pulsar, b.http, b.peer, b.amqp)]
    assert len(set(chosen)) == len(chosen)
    assert [b.name for b in again.brokers] == ["broker-1", "broker-2", "broker-3"]


def test_members_of_etcd_and_bookies_with_data_are_not_left_out(tmp_path: Path, ports: HeldPorts) -> None:
    plan_cluster(tmp_path, ports, brokers=1, bookies=2, etcd_members=3)
    with pytest.raises(ConfigError, match="3 etcd members"):
        plan_cluster(tmp_path, ports, brokers=1, bookies=2, etcd_members=1)
    with pytest.raises(ConfigError, match="2 bookies"):
        plan_cluster(tmp_path, ports, brokers=1, bookies=1, etcd_members=3)


def test_a_plan_that_cannot_be_read_is_named(tmp_path: Path, ports: HeldPorts) -> None:
    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(ConfigError, match=r"cluster\.json"):
        plan_cluster(tmp_path, ports, brokers=1, bookies=1, etcd_members=1)


def test_a_port_of_the_cluster_that_somebody_has_is_told_with_whose_it_is(
    tmp_path: Path, ports: HeldPorts
) -> None:
    plan = plan_cluster(tmp_path, ports, brokers=2, bookies=1, etcd_members=1)
    ports.close()
    with socket.create_server(("127.0.0.1", plan.brokers[1].kafka)):
        told = rf"127\.0\.0\.1:{plan.brokers[1].kafka} is in use, but belongs to broker-2 \(kafka\)"
        with pytest.raises(AddressInUseError, match=told):
            plan_cluster(tmp_path, ports, brokers=2, bookies=1, etcd_members=1)
        ports.close()
        assert plan_cluster(tmp_path, ports, brokers=1, bookies=1, etcd_members=1).brokers == plan.brokers[:1]


class FreePorts(HeldPorts):
    """Finds every port free, whatever else runs on this machine."""

    def __init__(self) -> None:
        super().__init__()
        self._others = itertools.count(10_000)

    def _bound(self, host: str, port: int, *, reuse: bool = False) -> int:
        return port or next(self._others)


def test_a_port_offset_is_of_the_first_start_and_kept(tmp_path: Path) -> None:
    ports = FreePorts()

    def plan(brokers: int, offset: int = 0) -> list[int]:
        found = plan_cluster(
            tmp_path, ports, brokers=brokers, bookies=1, etcd_members=0, port_offset=offset
        ).brokers
        return [port - first for each in found for port, first in ((each.kafka, 9092), (each.http, 8080))]

    assert plan(1, 20_100) == [20_100, 20_100]
    assert plan(2) == [20_100, 20_100, 20_101, 20_101]
    assert plan(2, 20_100) == plan(2)
    with pytest.raises(ConfigError, match="keeps its ports, because clients know them: Kafka's are 29192, 29193"):
        plan(2, 20_200)
    with pytest.raises(ConfigError, match="would reach 65536, above 65535") as told:
        plan_cluster(tmp_path / "new", ports, brokers=2, bookies=1, etcd_members=0, port_offset=56_443)
    assert told.value.hint == "use an offset of at most 56442"


def test_the_secret_is_made_once_and_nobody_elses_to_read(tmp_path: Path) -> None:
    path = cluster_secret_file(tmp_path)
    text = path.read_text()
    assert len(text) >= 32
    assert path.stat().st_mode & 0o077 == 0
    assert cluster_secret_file(tmp_path).read_text() == text


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        ((), Quorum(1, 1, 1)),
        (("cluster.meta=etcd://h:1",), Quorum(2, 2, 2)),
        (("cluster.meta=etcd://h:1", "storage.quorum=5/3/2"), Quorum(5, 3, 2)),
    ],
)
def test_copies_are_one_in_one_process_and_two_in_a_cluster(
    assignments: tuple[str, ...], expected: Quorum
) -> None:
    assert part_settings.quorum(load(assignments=assignments).config) == expected


@pytest.mark.parametrize("text", ["2", "2/2", "a/b/c", "1/2/2", "2/1/2", "0/0/0", "99/1/1"])
def test_a_quorum_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        part_settings.quorum(load(assignments=(f"storage.quorum={text}",)).config)


def test_a_broker_needs_to_know_where_the_metadata_is() -> None:
    with pytest.raises(ConfigError, match="metadata"):
        part_settings.remote_storage(load().config)
    assert part_settings.broker_name(load().config) == "standalone"
    with pytest.raises(ConfigError):
        part_settings.broker_name(load(assignments=("cluster.name=a/b",)).config)


def test_a_folder_of_before_amqp_gets_ports_for_it_and_keeps_the_others(tmp_path: Path, ports: HeldPorts) -> None:
    first = plan_cluster(tmp_path, ports, brokers=2, bookies=1, etcd_members=1)
    file = tmp_path / "cluster.json"
    tree = json.loads(file.read_text())
    for broker in tree["brokers"]:
        del broker["amqp"]
    file.write_text(json.dumps(tree))
    again = plan_cluster(tmp_path, ports, brokers=2, bookies=1, etcd_members=1)
    assert [replace(b, amqp=0) for b in again.brokers] == [replace(b, amqp=0) for b in first.brokers]
    assert len({b.amqp for b in again.brokers} - {0}) == 2
