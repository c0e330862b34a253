"""What commands on Spark have in common: whether it is there, its session and files, which Weir it is about."""

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
#: Says for a shell where Spark runs, as `--master` does for a command.
MASTER_VARIABLE = "WEIR_SPARK_MASTER"
NEEDED = ("pyspark", "pyarrow", "numpy", "pandas", "sqlglot", "prompt_toolkit")


def master_option(what: str) -> Callable[[_Command], _Command]:
    """`--master`: Spark in this process, or a cluster of its own. `what`: that is done there."""
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
    # Spark's errors come as exceptions; its own log of them would stand beside each.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def quiet_session(
    name: str, *, master: str, config: Mapping[str, str] | None = None, into: Path | None = None
) -> "SparkSession":
    """A session whose JVM and workers write what they have to say into a file: it is for those who look for a
    fault in Spark. Errors come as exceptions all the same."""
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
    """Where Spark keeps tables of its own; not in the folder that the user happens to be in."""
    return {"spark.sql.warehouse.dir": str(state_folder() / "warehouse")}


def spark_log() -> Path:
    return state_folder() / "spark.log"


def state_folder() -> Path:
    """What commands remember on this machine."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    folder = state / "weir"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def place_of(remote: Remote, kafka: str | None, *, patience_s: float = 5.0) -> "WeirCluster":
    """The Weir that `--url` names. `patience_s`: how long it may be away."""
    from weir.spark.tables.names import WeirCluster

    return WeirCluster.find(remote.access(patience_s), kafka)
