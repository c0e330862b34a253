"""How long producers of both protocols wait when what they write to changes brokers: planned, and after a kill.

A cluster of real processes, official clients with their defaults; a pause is the longest time that a message to a
partition waited for its acknowledgement, for each partition whose broker was changed.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from bench.case import Measured, Params, case
from bench.pause_loads import KafkaWaits, PulsarWaits, Waits
from bench.stats import percentile
from weir.model.cluster import BundleName
from weir.model.topics import TopicName
from weir.testing.processes.both_clients import Kafka
from weir.testing.soak.cluster_process import ClusterProcess, Node

_TOPICS = {"kafka": "pauses-kafka", "pulsar": "pauses-pulsar"}
_SETTLE_S = 1.0
_TIMEOUT_S = 120.0


class _Cluster:
    """The processes, who has which bundle, and the producers."""

    def __init__(self, folder: Path, brokers: int, partitions: int) -> None:
        self._process = ClusterProcess(folder, "--brokers", str(brokers)).start()
        self._partitions = partitions
        kafka = Kafka(self._process.kafka)
        for topic in _TOPICS.values():
            kafka.create(topic, partitions)
        topic = f"persistent://public/default/{_TOPICS['pulsar']}"
        self.waits: dict[str, Waits] = {
            "kafka": KafkaWaits(self._process.kafka, _TOPICS["kafka"], partitions),
            "pulsar": PulsarWaits(self._process.pulsar_url, topic, partitions),
        }
        self.settle()

    def admin(self, method: str, path: str) -> Any:
        """Of whichever broker answers."""
        urls = [f"http://{address}/admin/{path}" for address in self._process.http.split(",")]
        while urls:
            try:
                with urlopen(Request(urls.pop(0), method=method), timeout=_TIMEOUT_S) as told:
                    said = told.read()
                    return json.loads(said) if said else None
            except HTTPError as told:
                if told.code != HTTPStatus.TEMPORARY_REDIRECT:
                    raise
                urls.insert(0, told.headers["Location"])  # the owner's
            except URLError:
                continue
        raise SystemExit("no broker answers")

    def brokers(self) -> list[Node]:
        return self._process.nodes("broker")

    def node(self, name: str) -> Node:
        return next(node for node in self.brokers() if node.name == name)

    def owned(self) -> dict[BundleName, str]:
        """Bundles with topics of ours, and who has each."""
        listed = {each["name"]: each["owner"] for each in self.admin("GET", "weir/v1/cluster")["bundles"]}
        names = {BundleName.parse(name): owner for name, owner in listed.items() if owner}
        return {name: owner for name, owner in names.items() if any(map(name.holds, self._all_parts()))}

    def _all_parts(self) -> list[TopicName]:
        return [self._part(topic, n) for topic in _TOPICS.values() for n in range(self._partitions)]

    def _part(self, topic: str, partition: int) -> TopicName:
        return TopicName.parse(f"persistent://public/default/{topic}-partition-{partition}")

    def held_by(self, protocol: str, bundles: list[BundleName]) -> list[int]:
        parts = [self._part(_TOPICS[protocol], n) for n in range(self._partitions)]
        return [n for n, part in enumerate(parts) if any(bundle.holds(part) for bundle in bundles)]

    def settle(self) -> None:
        for waits in self.waits.values():
            waits.longest_s(range(self._partitions))
        time.sleep(_SETTLE_S)

    def struck(self, bundles: list[BundleName], act: Callable[[], object]) -> dict[str, list[float]]:
        """Do it; the pauses of each partition of these bundles, by protocol."""
        self.settle()
        for waits in self.waits.values():
            waits.begin()
        act()
        return {
            protocol: waits.longest_s(self.held_by(protocol, bundles)) for protocol, waits in self.waits.items()
        }

    def signalled(self, name: str, number: signal.Signals) -> dict[str, list[float]]:
        """End a broker; the supervisor starts it again."""
        node = self.node(name)
        bundles = [bundle for bundle, owner in self.owned().items() if owner == name]

        def end() -> None:
            os.kill(node.pid, number)
            self._process.wait_replaced(node)  # by then others have what it had

        return self.struck(bundles, end)

    def close(self) -> None:
        for waits in self.waits.values():
            waits.stop()  # type: ignore[attr-defined]
        self._process.close()


def _moved(cluster: _Cluster, rng: random.Random) -> dict[str, list[float]]:
    owned = cluster.owned()
    bundle = rng.choice(sorted(owned, key=str))
    to = rng.choice([node.name for node in cluster.brokers() if node.name != owned[bundle]])
    tenant, namespace, hashes = str(bundle).split("/")
    path = f"v2/namespaces/{quote(tenant)}/{quote(namespace)}/{hashes}/transfer?"
    query = urlencode({"destinationBroker": to})
    return cluster.struck([bundle], lambda: cluster.admin("PUT", path + query))


def _busiest(cluster: _Cluster) -> str:
    owners = list(cluster.owned().values())
    return max(sorted(set(owners)), key=owners.count)


def _drained(cluster: _Cluster) -> dict[str, list[float]]:
    name = _busiest(cluster)
    bundles = [bundle for bundle, owner in cluster.owned().items() if owner == name]
    found = cluster.struck(bundles, lambda: cluster.admin("PUT", f"weir/v1/cluster/brokers/{name}/drain"))
    cluster.admin("PUT", f"weir/v1/cluster/brokers/{name}/resume")
    return found


@case("pauses")
def pauses(params: Params, folder: str) -> Measured:
    """Percentiles in ms, by protocol and by what was done."""
    rng = random.Random(1)
    cluster = _Cluster(Path(folder), params["brokers"], params["partitions"])
    deeds: dict[str, Callable[[], dict[str, list[float]]]] = {
        "move": lambda: _moved(cluster, rng),
        "drain": lambda: _drained(cluster),
        "sigterm": lambda: cluster.signalled(_busiest(cluster), signal.SIGTERM),
        "sigkill": lambda: cluster.signalled(_busiest(cluster), signal.SIGKILL),
    }
    measured: Measured = {}
    try:
        for deed, act in deeds.items():
            found: dict[str, list[float]] = {protocol: [] for protocol in _TOPICS}
            for _ in range(params[deed]):
                for protocol, seconds in act().items():
                    found[protocol] += [1000 * each for each in seconds]
            for protocol, milliseconds in found.items():
                ordered = sorted(milliseconds)
                if ordered:
                    measured[f"{protocol} {deed} samples"] = len(ordered)
                    for title, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                        measured[f"{protocol} {deed} {title}"] = percentile(ordered, share)
        failures = [failure for waits in cluster.waits.values() for failure in waits.failures]
        if failures:
            raise SystemExit(f"{len(failures)} messages were refused: {failures[:3]}")
    finally:
        cluster.close()
    return measured
