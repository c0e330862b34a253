"""Iceberg's own REST catalog server, by which that project tests its clients; from Maven's central repository."""

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pyspark

from bench.maven import Artifacts

VERSION = "1.10.1"
ARTIFACTS = Artifacts(
    f"iceberg-rest-{VERSION}",
    (
        f"org.apache.iceberg:iceberg-core:{VERSION}",
        "org.eclipse.jetty:jetty-servlet:11.0.26",
        "org.slf4j:slf4j-simple:2.0.17",
        "org.xerial:sqlite-jdbc:3.50.3.0",
    ),
    alone=(
        f"org.apache.iceberg:iceberg-open-api:{VERSION}:test-fixtures",
        f"org.apache.iceberg:iceberg-core:{VERSION}:tests",
    ),
)
_START_TIMEOUT_S = 120.0


class RestCatalog:
    """The server over tables in folders, with a database of its own in `folder`."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}"
        self._log = folder / "catalog.log"
        # By its rule: two underscores are a hyphen, one is a dot.
        self._settings = {
            "CATALOG_REST_PORT": str(self._port),
            "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
            "CATALOG_WAREHOUSE": f"file://{folder}/warehouse",
            "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, over what it knew."""
        # Hadoop's files, which PySpark has.
        jars = Path(pyspark.__file__).parent / "jars"
        hadoop = [str(jar) for jar in jars.glob("hadoop-client-*.jar")]
        path = os.pathsep.join([ARTIFACTS.classpath, *hadoop])
        java = shutil.which("java") or "java"
        command = [java, "-Xmx256m", "-XX:+UseSerialGC", "-cp", path, "org.apache.iceberg.rest.RESTCatalogServer"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **self._settings})
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the catalog did not start:\n{self._log.read_text(errors='replace')}")
            time.sleep(0.05)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/config", timeout=10):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
