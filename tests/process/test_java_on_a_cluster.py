"""Apache's own Java clients of both protocols on a cluster, while what they write to and read changes brokers.

Kafka's consumer checks its positions against leader epochs; Pulsar's looks up over HTTP and over its own protocol.
"""

import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from bench import apache, kafka_peer
from bench.maven import Artifacts

from weir.testing.processes.both_clients import Kafka
from weir.testing.processes.cluster import ClusterProcess
from weir.testing.processes.java_program import JavaProgram

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(300)]

_SOURCES = Path(__file__).parent / "java"
_PARTITIONS = 6
_MESSAGES = 60
_PATIENCE_S = 120.0
_REDIRECTS = 100


def java(artifacts: Artifacts, source: str, *arguments: str) -> JavaProgram:
    if reason := artifacts.missing(patience_s=60):
        pytest.skip(reason)
    return JavaProgram(artifacts.classpath, _SOURCES / source, *arguments)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    cluster = ClusterProcess(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster.start()
    finally:
        cluster.close()


def asked(cluster: ClusterProcess, method: str, path: str) -> Any:
    """Of the broker to which one is sent, in the end: what others know of it may be a moment old."""
    url = f"{cluster.http_url()}/admin/{path}"
    for _ in range(_REDIRECTS):
        try:
            with urlopen(Request(url, method=method), timeout=_PATIENCE_S) as told:
                return json.loads(told.read() or b"null")
        except HTTPError as told:
            if told.code != HTTPStatus.TEMPORARY_REDIRECT:
                raise
            url = told.headers["Location"]
    raise AssertionError(f"nobody does {path}")


def move_all(cluster: ClusterProcess) -> int:
    """Give each bundle that somebody has to the next broker; how many there were."""
    listed = asked(cluster, "GET", "weir/v1/cluster")["bundles"]
    listed = [each for each in listed if each["name"].startswith("public/")]
    owned = {each["name"]: each["owner"] for each in listed if each["owner"]}
    for bundle, owner in owned.items():
        to = f"broker-{int(owner.removeprefix('broker-')) % 3 + 1}"
        asked(cluster, "PUT", f"v2/namespaces/{bundle}/transfer?destinationBroker={to}")
    return len(owned)


def epochs(answer: str) -> set[int]:
    """In which leader epochs Kafka's consumer found its records written."""
    return set(json.loads(answer.partition(" of epochs ")[2]))


def test_javas_clients_of_both_protocols_follow_what_moves_and_lose_nothing(cluster: ClusterProcess) -> None:
    for topic in ("java-kafka", "java-pulsar"):
        Kafka(cluster.kafka).create(topic, _PARTITIONS)
    kafka = java(kafka_peer.ARTIFACTS, "KafkaOnCluster.java", cluster.kafka, "java-kafka", str(_PARTITIONS))
    urls = cluster.http_url(0), cluster.pulsar_url.split(",")[1]
    pulsar = java(
        apache.ARTIFACTS,
        "PulsarOnCluster.java",
        urls[0],
        f"pulsar://{urls[1]}",
        "persistent://public/default/java-pulsar",
    )
    try:
        for round_number in range(2):
            for program in (kafka, pulsar):
                program.tell(f"send {_MESSAGES}")
                program.tell(f"read {_MESSAGES}")
            assert round_number == 0 or move_all(cluster) > 1  # while they write and read
            first = round_number * _MESSAGES
            for program in (kafka, pulsar):
                assert program.said() == f"sent {_MESSAGES}"
                answer = program.said()
                assert answer.startswith("read " + str(list(range(first, first + _MESSAGES))))
                assert program is pulsar or min(epochs(answer)) >= round_number
            assert move_all(cluster) > 1
    finally:
        kafka.close()
        pulsar.close()
