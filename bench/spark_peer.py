"""Spark's own Kafka connector, with the Spark that it is made for: the connector's jars from Maven's central
repository, and PySpark of the same version from the package index, installed beside everything else.

The newest connector whose parts are all to be had is older than the Spark that Weir is tested with.
"""

import os
import subprocess
import sys
from pathlib import Path

from bench.maven import Artifacts

VERSION = "4.0.0"
TITLE = f"Kafka and Spark {VERSION}'s connector"
_ARTIFACTS = Artifacts(f"spark-kafka-{VERSION}", (f"org.apache.spark:spark-sql-kafka-0-10_2.13:{VERSION}",))
_NEEDED = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
_PACKAGES = (f"pyspark=={VERSION}", "py4j==0.10.9.9")
_INSTALL_TIMEOUT_S = 900


def missing() -> str:
    """Why it cannot run here, or nothing; the first time this downloads it."""
    why = _ARTIFACTS.missing()
    if why or (_folder() / "pyspark").exists():
        return why
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(_folder()), *_PACKAGES]
    try:
        done = subprocess.run(install, capture_output=True, check=False, timeout=_INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"PySpark {VERSION} did not come in time"
    return "" if done.returncode == 0 else f"PySpark {VERSION} could not be installed"


def jars() -> list[str]:
    return [path for path in _ARTIFACTS.classpath.split(os.pathsep) if Path(path).name.startswith(_NEEDED)]


def environment() -> dict[str, str]:
    """So that a Python process finds that PySpark first."""
    return os.environ | {"PYTHONPATH": str(_folder())}


def _folder() -> Path:
    return _ARTIFACTS.cache.with_name(f"pyspark-{VERSION}")
