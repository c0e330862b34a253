"""`weir connect run` that kills itself with SIGKILL at a step of its first file.

The first word says at which; the others are those of `weir`:

| step | a folder | a bucket |
| --- | --- | --- |
| planned | nothing is written | nothing is sent |
| half | half of the partial file is there | half of the object is sent |
| whole | all of it is there, under its hidden name | all of it is sent, and the upload not ended |
| renamed | the file has its name | |
| written | the file is there, and the position is where it was | the same |
| committed | the position is behind the file | the same |

With `engine = "spark"`, `spark` is while Spark's job writes into its own folder; for a folder there is no `half`.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from weir.cli.main import cli
from weir.connect.connectors.spark_files import SparkFilesSink
from weir.connect.reader import Inlet
from weir.connect.stores import Store


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Steps:
    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self._file_is_there = False

    def reached(self, step: str) -> None:
        if step == self._wanted:
            die()

    def hook(self) -> None:
        self._around(Store, "_write", before="planned", after=self._there)
        self._around(Inlet, "commit", before="written", after=lambda: self.reached("committed"), behind_file=True)
        replace, fsync = os.replace, os.fsync

        def replacing(source: Any, target: Any) -> None:
            ours = str(target).endswith(".jsonl")
            if ours:
                self.reached("whole")
            replace(source, target)
            if ours:
                self.reached("renamed")
                self._there()

        def syncing(descriptor: int) -> None:
            if self._wanted == "half" and Path(f"/proc/self/fd/{descriptor}").readlink().match("*/.*.jsonl.*"):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
                die()
            fsync(descriptor)

        os.replace, os.fsync = replacing, syncing  # type: ignore[assignment]
        self._hook_bucket()
        self._hook_spark()

    def _there(self) -> None:
        self._file_is_there = True

    def _around(
        self, owner: type, name: str, *, before: str, after: Callable[[], None], behind_file: bool = False
    ) -> None:
        real = getattr(owner, name)

        def hooked(*given: Any) -> Any:
            counts = (self._file_is_there or not behind_file) and not _is_about(str(given[1]))
            if counts:
                self.reached(before)
            found = real(*given)
            if counts:
                after()
            return found

        setattr(owner, name, hooked)

    def _hook_bucket(self) -> None:
        """Parts of an upload are there when they are written, so that it is known what was sent."""
        from pyarrow import fs

        fs.S3FileSystem = partial(fs.S3FileSystem, background_writes=False)
        real = Store.__init__

        def made(store: Any, job: Any) -> None:
            real(store, job)
            if not store.local:
                store._files = _Bucket(store._files, self)

        Store.__init__ = made  # type: ignore[method-assign]

    def _hook_spark(self) -> None:
        real: Any = SparkFilesSink._write_staged

        def staging(sink: Any, topic: str, ranges: Any, folder: str) -> None:
            self.reached("planned")
            if self._wanted == "spark":
                threading.Thread(target=_die_when_there, args=(Path(folder),), daemon=True).start()
            real(sink, topic, ranges, folder)
            self.reached("spark")  # it was faster than the thread

        SparkFilesSink._write_staged = staging  # type: ignore[method-assign]


def _is_about(*words: str) -> bool:
    """The file that says which topic it is, which is no file of messages."""
    return any(word.endswith("/_weir_topic") for word in words)


def _die_when_there(folder: Path) -> None:
    while not list(folder.rglob("*.txt")):
        time.sleep(0.001)
    die()


class _Bucket:
    """A client of S3 whose uploads stop at a step."""

    def __init__(self, real: Any, steps: Steps) -> None:
        self._real, self._steps = real, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def open_output_stream(self, path: str, **more: Any) -> Any:
        real = self._real.open_output_stream(path, **more)
        return real if _is_about(path) else _Upload(real, self._steps)


class _Upload:
    def __init__(self, real: Any, steps: Steps) -> None:
        self._real, self._steps = real, steps

    def __enter__(self) -> "_Upload":
        return self

    def __exit__(self, *_: object) -> None:
        self._real.close()

    def write(self, data: bytes) -> None:
        middle = len(data) // 2
        self._real.write(data[:middle])
        self._steps.reached("half")
        self._real.write(data[middle:])
        self._steps.reached("whole")


if __name__ == "__main__":
    Steps(sys.argv.pop(1)).hook()
    cli()
