"""Apache Pulsar standalone from Maven's central repository, as a peer."""

import random
import socket
from pathlib import Path
from typing import NamedTuple

from bench.maven import Artifacts

VERSION = "4.0.7"
ARTIFACTS = Artifacts(f"pulsar-{VERSION}", (f"org.apache.pulsar:pulsar-broker:{VERSION}",))
TITLE = f"Apache Pulsar {VERSION}"
#: Of the messages that were just written; Weir gets as much.
CACHE_MIB = 128
#: Linux lends ports from 32768 on.
_NOT_LENT = range(20_000, 32_000)
_HEAP = "1g"
_DIRECT = "1g"
OPENED = (
    "java.base/jdk.internal.loader",
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.base/sun.net",
    "java.base/sun.nio.ch",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)

_LOGGING = """<Configuration status="warn">
  <Appenders><Console name="Console"><PatternLayout pattern="%d %-5level %logger{1} %msg%n"/></Console></Appenders>
  <Loggers><Root level="warn"><AppenderRef ref="Console"/></Root></Loggers>
</Configuration>
"""


class Ports(NamedTuple):
    broker: int
    http: int
    bookie: int


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, and that are not lent to whoever connects: a client that asks again and
    again whether a broker is there would take the broker's."""
    ports: list[int] = []
    for port in random.sample(_NOT_LENT, len(_NOT_LENT)):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise SystemExit(f"no {count} of the ports from {_NOT_LENT.start} to {_NOT_LENT.stop} are free")


def missing() -> str:
    """Why Apache Pulsar cannot run here, or nothing; the first time this downloads it."""
    return ARTIFACTS.missing()


def command(folder: Path, ports: Ports) -> list[str]:
    """How it is started with everything that it keeps in this folder."""
    (folder / "standalone.conf").write_text(_settings(ports))
    (folder / "log4j2.xml").write_text(_LOGGING)
    return [
        "java",
        f"-Xms{_HEAP}",
        f"-Xmx{_HEAP}",
        f"-XX:MaxDirectMemorySize={_DIRECT}",
        "-XX:+UseG1GC",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED),
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dpulsar.allocator.exit_on_oom=true",
        "-Dio.netty.recycler.maxCapacityPerThread=4096",
        f"-Dlog4j2.configurationFile={folder}/log4j2.xml",
        "-cp",
        ARTIFACTS.classpath,
        "org.apache.pulsar.PulsarStandaloneStarter",
        "--config",
        str(folder / "standalone.conf"),
        "--no-functions-worker",
        "--no-stream-storage",
        "--metadata-dir",
        str(folder / "metadata"),
        "--bookkeeper-dir",
        str(folder / "bookkeeper"),
        "--bookkeeper-port",
        str(ports.bookie),
    ]


def _settings(ports: Ports) -> str:
    """What differs from its defaults: where it listens, one copy, and a synced journal."""
    settings = {
        "brokerServicePort": ports.broker,
        "webServicePort": ports.http,
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "clusterName": "standalone",
        "managedLedgerDefaultEnsembleSize": 1,
        "managedLedgerDefaultWriteQuorum": 1,
        "managedLedgerDefaultAckQuorum": 1,
        "journalSyncData": "true",
        "journalWriteData": "true",
        "bookkeeperClientTimeoutInSeconds": 60,
        "loadBalancerEnabled": "false",
        "allowLoopback": "true",
        "allowAutoTopicCreationType": "non-partitioned",
        "diskUsageThreshold": "0.99",
        "diskUsageWarnThreshold": "0.98",
        "dbStorage_writeCacheMaxSizeMb": 64,
        "dbStorage_readAheadCacheMaxSizeMb": 64,
        "managedLedgerCacheSizeMB": CACHE_MIB,
        "topicLevelPoliciesEnabled": "false",
        "systemTopicEnabled": "false",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())
