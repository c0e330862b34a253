"""Shared parts of commands on Spark: the installation check, sessions, files and the choice of the Weir."""

import logging
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weir.cli.remote import Remote
from weir.model.errors import SparkSetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.spark.tables.names import WeirCluster

_Command = TypeVar("_Command", bound=Callable[..., Any])
#: Chooses where Spark runs for a shell, as `--master` does for a command.
MASTER_VARIABLE = "WEIR_SPARK_MASTER"
NEEDED = ("pyspark", "pyarrow", "numpy", "pandas", "sqlglot", "prompt_toolkit")


def master_option(what: str) -> Callable[[_Command], _Command]:
    """`--master`: Spark in this process, or a Spark cluster. `what`: the work done there."""
    return click.option(
        "--master",
        envvar=MASTER_VARIABLE,
        default="local[*]",
        show_default=True,
        metavar="MASTER",
        help=f"{what}: here, or spark://HOST:PORT. [env: {MASTER_VARIABLE}]",
    )


def need_spark() -> None:
    """SparkSetupError unless the extra is installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise SparkSetupError(f"SQL runs on Spark, and {', '.join(missing)} is not installed")
    # Spark raises errors as exceptions; its own log would repeat each.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def quiet_session(
    name: str, *, master: str, config: Mapping[str, str] | None = None, into: Path | None = None
) -> "SparkSession":
    """A session whose JVM and workers log to a file, for debugging Spark. Errors are raised as exceptions in any
    case."""
    from weir.spark.spark_session import session

    file = into or spark_log()
    with file.open("ab") as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            return session(name, master=master, config=config)
        except Exception as failure:
            raise SparkSetupError(f"Spark does not start: {failure}", hint=f"see {file}") from failure
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def spark_config() -> dict[str, str]:
    """Put Spark's own tables into the state folder, not into the current folder."""
    return {"spark.sql.warehouse.dir": str(state_folder() / "warehouse")}


def spark_log() -> Path:
    return state_folder() / "spark.log"


def state_folder() -> Path:
    """The folder for state that commands keep on this machine."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    folder = state / "weir"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def place_of(remote: Remote, kafka: str | None, *, patience_s: float = 5.0) -> "WeirCluster":
    """The Weir that `--url` names. `patience_s`: how long it may be unavailable."""
    from weir.spark.tables.names import WeirCluster

    return WeirCluster.find(remote.access(patience_s), kafka)
