"""What commands on Spark have in common: whether it is there, which Weir it is about, who runs the streams."""

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from weir.cli.remote import Remote
from weir.client import streams as rest
from weir.client.blocking import Access
from weir.model.errors import ConfigError, SparkSetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.spark.sql.cluster import WeirCluster

_NEEDED = ("pyspark", "pyarrow", "numpy", "pandas", "sqlglot", "prompt_toolkit")
#: How long a runner that nobody watches waits for a broker that is away.
_PATIENCE_S = 300


def need_spark() -> None:
    """SparkSetupError unless the extra is installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise SparkSetupError(f"SQL runs on Spark, and {', '.join(missing)} is not installed")
    # Spark's errors come as exceptions; its own log of them would stand beside each.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)


def quiet_session(
    name: str, *, master: str, config: Mapping[str, str] | None = None, into: Path | None = None
) -> "SparkSession":
    """A session whose JVM and workers write what they have to say into a file: it is for those who look for a
    fault in Spark. Errors come as exceptions all the same."""
    from weir.spark.sessions import session

    file = into or spark_log()
    with file.open("ab") as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            return session(name, master=master, config=config)
        except Exception as failure:
            raise SparkSetupError(f"Spark does not start: {failure}", hint=f"see {file}") from None
        finally:
            os.dup2(kept, 2)
            os.close(kept)


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
    from weir.spark.sql.cluster import WeirCluster

    if remote.certificate is not None:
        raise ConfigError("Spark comes in with tokens, not with certificates", hint="use --token")
    if remote.ca is not None and not Path(remote.ca).is_file():
        raise ConfigError(f"there is no file {remote.ca}", hint="check --ca")
    return WeirCluster.find(Access(remote.url, remote.read_token(), remote.ca, patience_s), kafka)


def checkpoint_folder(access: Access, given: str | None) -> Path:
    """Where the streams keep what they need to go on: as given, or beside the broker's data if that is here."""
    if given is not None:
        return Path(given).absolute()
    data = Path(rest.listeners(access).data)
    if not data.is_dir():
        raise ConfigError("the broker's data is not on this machine", hint="give --checkpoints FOLDER")
    return data / "sql"


@dataclass(slots=True)
class RunnerStarter:
    """Starts a runner in the background where none runs."""

    remote: Remote
    access: Access
    kafka: str | None
    checkpoints: str | None
    process: "subprocess.Popen[bytes] | None" = None
    log: Path | None = None

    def see(self) -> bool:
        """See to it that there is one; False if there is none, and this user may not run it."""
        if self.process is not None and self.process.poll() is None:
            return True
        found = rest.runner(self.access)
        if found.where is None and self.process is not None:
            raise SparkSetupError("the runner of the streams has ended", hint=f"see {self.log} for why")
        if found.where is None and found.allowed:
            self.process = self._start()
        return found.where is not None or found.allowed

    def _start(self) -> "subprocess.Popen[bytes]":
        folder = checkpoint_folder(self.access, self.checkpoints)
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "weir.cli.main", "-v", "streams", "run", "--url", self.remote.url]
        command += ["--checkpoints", str(folder), "--patience", str(_PATIENCE_S), "--leave-when-idle"]
        for name, value in (("--kafka", self.kafka), ("--ca", self.remote.ca)):
            command += [name, value] if value is not None else []
        # The token goes by the environment: a command line can be seen by everybody on the machine.
        variables = self.remote.environment()
        self.log = folder / "runner.log"
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=variables
            )
