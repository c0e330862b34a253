"""What a running pipeline says of itself, in a file of its storage: for `status` and `stop`."""

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from weir.model.errors import ConfigError, RunnerBusyError

_FILE, _LOCK = "run.json", "run.lock"
_STOP_S, _PAUSE_S = 30.0, 0.1
#: Of what Spark says, so many lines are kept.
_LINES = 20


@dataclass
class State:
    """Times are seconds since 1970."""

    pipeline: str = ""
    pid: int = 0
    #: starting, running, waiting, failed, stopped or done
    state: str = "stopped"
    since: float = 0.0
    updates: int = 0
    failures: int = 0
    last_update: float = 0.0
    last_seconds: float = 0.0
    error: str = ""
    said: list[str] = field(default_factory=list)
    #: Spark's own process; 0 as long as there is none.
    spark: int = 0

    def say(self, line: str) -> None:
        self.said = [*self.said, line][-_LINES:]


def read(storage: Path) -> State:
    """What was last said; `stopped`, whatever it was, if nobody runs any more."""
    found = State()
    with suppress(OSError, ValueError, TypeError):
        found = State(**json.loads((storage / _FILE).read_text(encoding="utf-8")))
    if found.state in ("starting", "running", "waiting") and not is_running(storage):
        found.state, found.error = "stopped", found.error or "it ended without a word"
    return found


def write(storage: Path, state: State) -> None:
    """As a whole, or not at all."""
    new = storage / f"{_FILE}.new"
    new.write_text(json.dumps(asdict(state), indent=2), encoding="utf-8")
    new.replace(storage / _FILE)


@contextmanager
def alone(storage: Path) -> Iterator[None]:
    """RunnerBusyError if the pipeline runs already, on this machine."""
    storage.mkdir(parents=True, exist_ok=True)
    with (storage / _LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunnerBusyError(
                f"it runs already, as process {_holder(storage) or 'unknown'}", hint="weir pipeline stop ends it"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        try:
            yield
        finally:
            lock.truncate(0)


def _holder(storage: Path) -> int:
    """The process that has the lock, by its own word; 0 in the moment before it says so. What it wrote of its run
    may be that of the run before."""
    with suppress(OSError, ValueError):
        return int((storage / _LOCK).read_text(encoding="utf-8"))
    return 0


def check_own(storage: Path, pipeline: str) -> None:
    """ConfigError if the storage is another pipeline's: flows of one name would go on from its checkpoints."""
    other = read(storage).pipeline
    if other not in ("", pipeline):
        raise ConfigError(
            f"{storage} is the storage of the pipeline {other}",
            hint=f"give each a storage of its own; if this one had that name, remove {storage / _FILE}",
        )


def is_running(storage: Path) -> bool:
    """Its runner holds a lock, which ends with it however it ends."""
    try:
        with (storage / _LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def end_orphan(storage: Path, pipeline: str) -> None:
    """Spark's process outlives a runner that was killed, and would go on beside that of the next one with the
    update that it is at. It is killed, and waited for; by who is `alone`."""
    pid = read(storage).spark
    while pid and _is_spark(pid, pipeline):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _is_spark(pid: int, pipeline: str) -> bool:
    """Whether the process is Spark's, and still this pipeline's: numbers are given again."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return (
        b"org.apache.spark.deploy.SparkSubmit" in words
        and f"spark.app.name={app_name(pipeline)}".encode() in words
    )


def app_name(pipeline: str) -> str:
    """What Spark calls the pipeline."""
    return f"weir-pipeline-{pipeline}"


def stop(storage: Path, patience_s: float = _STOP_S) -> bool:
    """Ask the runner to end, and wait for it; False if none runs."""
    if not is_running(storage):
        return False
    told, until = 0, time.monotonic() + patience_s
    while is_running(storage):
        pid = _holder(storage)
        if pid > 0 and pid != told:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            told = pid
        if time.monotonic() > until:
            raise RunnerBusyError(
                f"process {told} has not ended yet", hint="it ends after the update that it is at"
            )
        time.sleep(_PAUSE_S)
    return True
