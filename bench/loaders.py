"""Client processes that load a broker: made ready, told to go together, asked what they found."""

import json
import subprocess
import sys

from bench.case import Measured, Params

_END_TIMEOUT_S = 120.0


class Loader:
    """One client process: ready, then told to go, then asked what it found."""

    def __init__(self, module: str, role: str, params: Params) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, role, json.dumps(params)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._line() != "ready":
            raise SystemExit(f"the client did not get ready: {role} {params}")

    def _line(self) -> str:
        if self._process.stdout is None:
            return ""
        return self._process.stdout.readline().strip()

    def go(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def found(self) -> Measured:
        line = self._line()
        if not line:
            raise SystemExit("a client ended without a result")
        measured: Measured = json.loads(line)
        return measured

    def end(self) -> None:
        self._process.communicate(timeout=_END_TIMEOUT_S)


def together(loaders: list[Loader]) -> list[Measured]:
    """Let all of them go at once; what each found."""
    for loader in loaders:
        loader.go()
    found = [loader.found() for loader in loaders]
    for loader in loaders:
        loader.end()
    return found


def wait_for_go() -> None:
    """The client's side: say that it is ready, and wait."""
    print("ready", flush=True)
    sys.stdin.readline()
