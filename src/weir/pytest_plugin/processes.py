"""The tests' end of the process that forks brokers: started by the first who asks, ended with the session."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

from weir.pytest_plugin.messages import BrokerFailedError

#: A folder in memory, where there is one with room; a broker that is told to be idle needs a few MiB.
_IN_MEMORY = "/dev/shm"
_ROOM_BYTES = 256 * 1024 * 1024


class BrokerProcesses:
    """One per session, and per worker of pytest-xdist. Threads may use it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._root = ""
        self._numbers = itertools.count(1)
        self._asking = threading.Lock()

    def new_folder(self) -> str:
        """Of a broker that is to be; it is gone with the session at the latest."""
        with self._asking:
            self._start()
            folder = f"{self._root}/{next(self._numbers)}"
            os.mkdir(folder)
            return folder

    def ask(self, what: str, name: str, **more: Any) -> Mapping[str, Any]:
        """BrokerFailedError if it is refused."""
        with self._asking:
            self._start()
            answer = self._answer({"do": what, "name": name, **more})
        if "refused" in answer:
            raise BrokerFailedError(str(answer["refused"]))
        return answer

    def close(self) -> None:
        """All brokers, and all that they kept."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(self._root, ignore_errors=True)

    def _start(self) -> None:
        if self._process is not None:
            return
        if not hasattr(os, "fork"):
            raise BrokerFailedError(
                "Weir's brokers for pytest need an operating system that can fork: Linux or macOS"
            )
        self._root = tempfile.mkdtemp(prefix="weir-", dir=_folder())
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
        with open(f"{self._root}/log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "weir.pytest_plugin.host.forkserver", self._root],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for pytest, which ends this in order
            )
        self._line()

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise BrokerFailedError(f"the process that starts brokers has died: {self._log()}") from None
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._log()
            self.close()
            raise BrokerFailedError(f"the process that starts brokers has died: {said}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _log(self) -> str:
        try:
            with open(f"{self._root}/log", encoding="utf-8", errors="replace") as log:
                return log.read()[-4000:].strip() or "it said nothing"
        except OSError:
            return "its log is gone"


def _folder() -> str | None:
    """Where to put data: None for the system's temporary folder."""
    try:
        room = os.statvfs(_IN_MEMORY)
    except OSError:
        return None
    return _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) and room.f_bavail * room.f_frsize >= _ROOM_BYTES else None
