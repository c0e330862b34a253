"""The process that has Weir loaded: it forks a process for each broker, and ends them all when the tests end.

It is asked by lines of JSON. It has no threads and no event loop of its own, so that forking is safe.
The end of its input, or of the process that started it, is its own end, and takes every broker and file with it.
"""

import gc
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from weir.model.errors import WeirError
from weir.pytest_plugin.host.process import Spec, run_broker, try_broker

#: Between two looks whether the parent lives; its end is usually known at once, by the end of the input.
_PARENT_S = 1.0


class ForkServer:
    def __init__(self, root: str, requests: int, answers: int) -> None:
        self._root = root
        self._requests = requests
        self._answers = answers
        self._parent = os.getppid()
        self._brokers: dict[str, int] = {}
        #: Where each that was not asked for yet says that it serves.
        self._starting: dict[str, int] = {}
        #: Held open by this process alone: brokers see its end.
        self._alive, self._life = os.pipe()

    def serve(self) -> None:
        """Until the input ends."""
        unread = b""
        try:
            while os.getppid() == self._parent:
                if not select.select([self._requests], [], [], _PARENT_S)[0]:
                    continue
                data = os.read(self._requests, 65536)
                if not data:
                    break
                *lines, unread = (unread + data).split(b"\n")
                for line in lines:
                    self._say(self._answer(json.loads(line)))
        finally:
            for name in list(self._brokers):
                self._kill(name)
            shutil.rmtree(self._root, ignore_errors=True)

    def _say(self, answer: dict[str, Any]) -> None:
        os.write(self._answers, json.dumps(answer).encode() + b"\n")

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["name"]
        match request["do"]:
            case "start":
                return self._start(name, Spec(**request["spec"]))
            case "ready":
                return self._ready(name)
            case "kill":
                return self._kill(name)
            case "wait":
                return self._wait(name)
        return {"refused": f"{request['do']!r} is nothing that can be asked"}

    def _start(self, name: str, spec: Spec) -> dict[str, Any]:
        heard, said = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(heard)
            self._become_broker(spec, said)
        os.close(said)
        self._brokers[name] = pid
        self._starting[name] = heard
        return {"started": pid}

    def _ready(self, name: str) -> dict[str, Any]:
        """Wait until it serves; where, or why not."""
        with os.fdopen(self._starting.pop(name), "rb") as stream:
            told = stream.read()
        return (
            json.loads(told)
            if told
            else {"refused": f"the broker died at its start ({self._kill(name)['ended']})"}
        )

    def _become_broker(self, spec: Spec, said: int) -> NoReturn:
        status = 1
        try:
            os.close(self._life)
            os.close(self._requests)
            os.close(self._answers)
            for other in self._starting.values():
                os.close(other)
            log = os.open(f"{spec.folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
            os.dup2(log, 1)
            os.dup2(log, 2)
            tell = _teller(said)
            try:
                run_broker(spec, tell, self._alive)
                status = 0
            except WeirError as refused:
                print(refused, file=sys.stderr)
                tell({"refused": f"{refused}"})
            except Exception as failed:
                traceback.print_exc()
                tell({"refused": f"{type(failed).__name__}: {failed}"})
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _kill(self, name: str) -> dict[str, Any]:
        """Also one that has ended by itself."""
        pid = self._brokers.get(name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return self._wait(name)

    def _wait(self, name: str) -> dict[str, Any]:
        """For its end, however that comes."""
        pid = self._brokers.pop(name, None)
        starting = self._starting.pop(name, None)
        if starting is not None:
            os.close(starting)
        if pid is None:
            return {"ended": "before"}
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return {"ended": f"exit {code}" if code >= 0 else f"signal {-code}"}


def _teller(said: int) -> Callable[[dict[str, Any]], None]:
    """Says one thing, once."""
    left = [said]

    def tell(what: dict[str, Any]) -> None:
        while left:
            descriptor = left.pop()
            os.write(descriptor, json.dumps(what).encode())
            os.close(descriptor)

    return tell


def warm_up(root: str) -> None:
    """Start a broker once, here: whatever is loaded or compiled when it is first needed, every fork has then."""
    folder = tempfile.mkdtemp(prefix="warm-up-", dir=root)
    try_broker(Spec(folder, {}, dict.fromkeys(("kafka", "pulsar", "amqp", "rocketmq", "http"), 0)))
    shutil.rmtree(folder)
    gc.collect()
    gc.freeze()


def main() -> None:
    root = sys.argv[1]
    Path(root).mkdir(parents=True, exist_ok=True)
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # whatever is printed here is no answer
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    warm_up(root)
    server = ForkServer(root, requests, answers)
    server._say({"ready": os.getpid()})
    server.serve()


if __name__ == "__main__":
    main()
