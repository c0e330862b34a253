"""Apache Kafka from Maven's central repository: one node, KRaft, as a peer."""

import subprocess
from pathlib import Path

from bench.maven import Artifacts

VERSION = "4.1.1"
TITLE = f"Apache Kafka {VERSION}"
ARTIFACTS = Artifacts(
    f"kafka-{VERSION}", (f"org.apache.kafka:kafka_2.13:{VERSION}", f"org.apache.kafka:kafka-tools:{VERSION}")
)
_HEAP = "1g"
_CLUSTER = "4L6g3nShT-eMCtK--X86sw"


def missing() -> str:
    """Why Apache Kafka cannot run here, or nothing; the first time this downloads it."""
    return ARTIFACTS.missing()


def command(folder: Path, port: int, controller: int, *, sync: bool) -> list[str]:
    """How it is started with everything that it keeps in this folder; its storage is made now."""
    properties = folder / "server.properties"
    properties.write_text(_settings(folder, port, controller, sync=sync))
    java = ["java", f"-Xms{_HEAP}", f"-Xmx{_HEAP}", "-XX:+UseG1GC", "-cp", ARTIFACTS.classpath]
    if not (folder / "data").exists():
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(properties)],
            check=True,
            capture_output=True,
        )
    return [*java, "kafka.Kafka", str(properties)]


def _settings(folder: Path, port: int, controller: int, *, sync: bool) -> str:
    """What differs from its defaults: where it listens, one copy; with `sync`, every append is flushed."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / "data"),
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    if sync:
        settings["log.flush.interval.messages"] = 1
    return "".join(f"{name}={value}\n" for name, value in settings.items())
