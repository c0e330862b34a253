"""A function that kills, in its calls, whoever works with it: in first calls, retries, the last one before a dead
letter; then during an update and a stop; and every message is counted."""

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from weir.client import functions as rest
from weir.client.admin import Access
from weir.model.definitions import Function, FunctionWanted
from weir.model.errors import WeirError

from .conftest import Bench
from .running import PATIENCE_S, Runner, kill, lives, worker_of

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(1500)]

#: A message's number says what becomes of it: of fifty, one is never taken, and one only at the second time.
NEVER, LATER, EVERY = 7, 9, 50
#: In its first call somebody is killed: if it is the caller and it was alone there, it fails.
STRUCK = 20
CODE = """
import json, os, pathlib, signal, time
FOLDER = pathlib.Path(%(folder)r)

def above(pid, levels):
    for _ in range(levels):
        pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    return pid

def strike(number, attempt):
    "Once for each place of the plan: the file says that it was done."
    victim = json.loads((FOLDER / "plan").read_text()).get(f"{number} {attempt}")
    if victim is None:
        return
    try:
        (FOLDER / f"struck {number} {attempt}").touch(exist_ok=False)
    except FileExistsError:
        return
    named = victim in ("broker", "runner")
    pid = int((FOLDER / victim).read_text()) if named else above(os.getpid(), %(levels)r[victim])
    os.kill(pid, signal.SIGKILL)
    if victim == "caller":
        time.sleep(60)

def f(message, context):
    number = int(message.text)
    context.state["n"] = context.state.get("n", 0) + 1
    strike(number, message.attempt)
    if number %% %(every)d == %(never)d or (number %% %(every)d == %(later)d and message.attempt == 1):
        raise ValueError(f"{number} at {message.attempt}")
    return f"{number} {context.state['n']}"
"""
#: Whom a call kills: by how many parents above the process that calls, or by name.
LIGHT = {"caller": 0, "worker": 1}


class Killing:
    """The function, its runner and its broker, each of which is started again when it is found dead."""

    def __init__(
        self, bench: Bench, folder: Path, *runner: str, variables: Mapping[str, str] | None = None
    ) -> None:
        self.bench = bench
        self.folder = folder
        self.runner = Runner(bench, folder, *runner, variables=variables)
        self.quick = Access(bench.up.http_url, patience_s=2.0)
        self.sent = 0
        #: Brokers and runners that were started again.
        self.revived = 0

    def plan(self, strikes: Mapping[tuple[int, int], str]) -> None:
        told = {f"{number} {attempt}": victim for (number, attempt), victim in strikes.items()}
        (self.folder / "plan").write_text(json.dumps(told))

    def start(self) -> None:
        self.runner.start()
        self._note()

    def revive(self) -> None:
        if not lives(self.bench.up.pid):
            self.bench.up.kill()
            self.bench.up.start()
            self.revived += 1
        if not lives(self.runner.pid):
            self.runner.end(signal.SIGKILL)
            self.runner.start()
            self.revived += 1
        self._note()

    def _note(self) -> None:
        (self.folder / "broker").write_text(str(self.bench.up.pid))
        (self.folder / "runner").write_text(str(self.runner.pid))

    def until(self, condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while True:
            self.revive()
            try:
                if condition():
                    return
            except WeirError:
                pass  # the broker has just been killed
            assert time.monotonic() < deadline, what
            time.sleep(0.1)

    def feed(self, topic: str, many: int) -> None:
        self.bench.produce(topic, [str(at) for at in range(self.sent, self.sent + many)], key="k")
        self.sent += many

    def state_of(self, function: Function) -> str:
        told = rest.get_function(self.quick, function.name).stats
        return "" if told is None else told.state

    def struck(self) -> int:
        return len(list(self.folder.glob("struck *")))


def run(
    killing: Killing,
    function: Function,
    plans: Sequence[Mapping[tuple[int, int], str]],
    each: int,
    updates: Sequence[str] = ("worker", "runner"),
) -> None:
    bench, (topic,) = killing.bench, function.inputs
    killing.plan({})
    killing.start()
    try:
        for at, strikes in enumerate(plans):
            killing.plan(strikes)
            killing.feed(topic.local, each)
            so_far = [victim for some in plans[: at + 1] for victim in some.values()]
            wanted = len(so_far), len([victim for victim in so_far if victim in ("broker", "runner")])
            killing.until(lambda: (killing.struck(), killing.revived) == wanted, f"not all of {strikes}", 600.0)  # noqa: B023
        killing.plan({})
        for version, ending in enumerate(updates, 2):
            killing.until(lambda: killing.state_of(function) == "running", "it does not run", 600.0)
            killing.feed(topic.local, each)
            pid = worker_of(bench, function, version=version - 1)
            options = dict(function.options) | {"linger_ms": str(version)}
            bench.update(function, function.code, **options)
            kill(pid if ending == "worker" else killing.runner.pid)
            killing.until(lambda: lives(killing.runner.pid), "no runner")
        killing.until(lambda: killing.state_of(function) == "running", "it does not run", 600.0)
        killing.feed(topic.local, each)
        rest.want(bench.access, function.name, FunctionWanted.STOPPED)
        kill(killing.runner.pid)
        killing.until(lambda: killing.state_of(function) == "stopped", "it does not stop")
        rest.want(bench.access, function.name, FunctionWanted.RUNNING)
        check(killing, function)
    finally:
        killing.runner.end()


def check(killing: Killing, function: Function) -> None:
    bench, (topic,) = killing.bench, function.inputs
    dead = [number for number in range(killing.sent) if number % EVERY == NEVER]
    good = [number for number in range(killing.sent) if number % EVERY != NEVER]
    letters = bench.read(f"{topic.local}-{function.subscription}-DLQ", len(dead), more=True)
    assert sorted(int(one.value()) for one in letters) == dead
    found = bench.read(f"{function.name.local}-out", len(good), more=True)
    pairs = [tuple(map(int, one.value().split())) for one in found]
    assert sorted(number for number, _ in pairs) == good
    assert [count for _, count in pairs] == list(range(1, len(good) + 1))
    plain = [number for number in good if number % EVERY not in (LATER, STRUCK)]
    assert [number for number, _ in pairs if number in set(plain)] == plain


def code(folder: Path, levels: Mapping[str, int]) -> str:
    told = {"folder": str(folder), "levels": levels, "every": EVERY, "never": NEVER, "later": LATER}
    return CODE % told


def test_light_whoever_is_killed_in_whatever_call_every_message_is_counted(bench: Bench, tmp_path: Path) -> None:
    killing = Killing(bench, tmp_path)
    function = bench.deploy(
        code(tmp_path, LIGHT), stateful="true", batch_messages="20", retry="10ms", max_deliveries="3"
    )
    plans = [{(at * 100 + STRUCK, 1): victim} for at, victim in enumerate((*LIGHT, "broker", "runner"))]
    plans += [{(400 + LATER + EVERY * at, 2): victim for at, victim in enumerate(("caller", "worker"))}]
    plans += [{(500 + LATER, 2): "broker", (500 + NEVER, 2): "worker"}]
    plans += [{(600 + NEVER + EVERY * at, 3): victim for at, victim in enumerate(("caller", "worker"))}]
    plans += [{(700 + NEVER, 3): "broker", (700 + NEVER + EVERY, 3): "runner"}]
    run(killing, function, plans, 100)
