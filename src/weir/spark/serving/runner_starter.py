"""Starts a runner of streams in the background, where none runs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weir.client import streams as rest
from weir.client.blocking import Access
from weir.model.errors import ConfigError, SparkJvmError, SparkSetupError

#: How long a runner that nobody watches waits for a broker that is away.
_PATIENCE_S = 300


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
    """For one user at one Weir."""

    url: str
    token: str | None
    ca: str | None
    kafka: str | None
    access: Access
    checkpoints: str | None
    process: "subprocess.Popen[bytes] | None" = None
    log: Path | None = None

    def see(self) -> bool:
        """See to it that there is one; False if there is none, and this user may not run it."""
        if self.process is not None and self.process.poll() is None:
            return True
        found = rest.runner(self.access)
        if found.where is None and self.process is not None and self.process.returncode != SparkJvmError.exit_code:
            raise SparkSetupError("the runner of the streams has ended", hint=f"see {self.log} for why")
        if found.where is None and found.allowed:
            self.process = self._start()
        return found.where is not None or found.allowed

    def _words(self) -> Iterator[tuple[str, str | None]]:
        yield from (("--kafka", self.kafka), ("--ca", self.ca))
        yield from (("--cert", self.access.certificate), ("--cert-key", self.access.key))

    def _start(self) -> "subprocess.Popen[bytes]":
        folder = checkpoint_folder(self.access, self.checkpoints)
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "weir.cli.main", "-v", "streams", "run", "--url", self.url]
        command += ["--checkpoints", str(folder), "--patience", str(_PATIENCE_S), "--leave-when-idle"]
        for name, value in self._words():
            command += [name, value] if value is not None else []
        # The token goes by the environment: a command line can be seen by everybody on the machine.
        variables = {name: value for name, value in os.environ.items() if name != "WEIR_TOKEN"}
        variables |= {} if self.token is None else {"WEIR_TOKEN": self.token}
        self.log = folder / "runner.log"
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=variables
            )
