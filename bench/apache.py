"""Apache Pulsar standalone from Maven's central repository, made runnable without its distribution.

A generated project names one dependency, `pulsar-broker`; Maven resolves and downloads the rest once, into its own
repository, and says the class path, which is kept under the cache folder. `WEIR_BENCH_CACHE` moves that folder.
"""

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import NamedTuple

VERSION = "4.0.7"
TITLE = f"Apache Pulsar {VERSION}"
#: Of the messages that were just written; Weir gets as much.
CACHE_MIB = 128
_HEAP = "1g"
_DIRECT = "1g"
_RESOLVE_TIMEOUT_S = 900
_OPENED = (
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

_PROJECT = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>weir.bench</groupId>
  <artifactId>peer</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.pulsar</groupId>
      <artifactId>pulsar-broker</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""

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
    """Ports that nobody listens on now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def cache() -> Path:
    return Path(os.environ.get("WEIR_BENCH_CACHE", Path.home() / ".cache" / "weir-bench")) / f"pulsar-{VERSION}"


def missing() -> str:
    """Why Apache Pulsar cannot run here, or nothing; the first time this downloads it."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            return f"there is no {program} here"
    if _classpath_file().exists():
        return ""
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(_PROJECT)
    partial = folder / "classpath.new"
    resolve = ["mvn", "-B", "-q", "dependency:build-classpath", f"-Dmdep.outputFile={partial}"]
    try:
        done = subprocess.run(
            resolve,
            cwd=folder,
            capture_output=True,
            check=False,
            timeout=_RESOLVE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return "Maven did not get it in time"
    if done.returncode or not partial.exists():
        return "Maven could not get it"
    partial.rename(_classpath_file())
    return ""


def _classpath_file() -> Path:
    return cache() / "classpath"


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
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dpulsar.allocator.exit_on_oom=true",
        "-Dio.netty.recycler.maxCapacityPerThread=4096",
        f"-Dlog4j2.configurationFile={folder}/log4j2.xml",
        "-cp",
        _classpath_file().read_text().strip(),
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
