"""One broker's process: a whole Weir on a clock that can be moved, and what a test asks of it.

Files that live as long as a test: nothing is synced, so that nothing waits; they do survive their process.

An event loop that can tell when nothing is left to do: nothing is ready, nothing has come, only timers wait.
"""

import asyncio
import gc
import json
import os
import random
import selectors
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from weir.model.errors import ConfigError, WeirError
from weir.model.ids import Buffer
from weir.pytest_plugin.host.inspection import Looking
from weir.runtime.adjustable_clock import MovableClock
from weir.runtime.interfaces import Runtime
from weir.runtime.real import RealClock, RealResources
from weir.runtime.real_disk import Lane, RealDisk, RealFile, Shortcut
from weir.runtime.real_net import RealNetwork
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load
from weir.server.config.tree import Config
from weir.server.logs import set_up_logs
from weir.stream.settings import HoldingSettings

#: With clients that send without end a loop is never idle; so many turns must do.
_MOST_TURNS = 10_000


class _IdleSelector(selectors.DefaultSelector):
    """Asked to wait, it is the loop's way to say that nothing is ready. (The selector is the documented parameter
    of asyncio's loop, so this holds for every version of Python.)"""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[asyncio.Future[None]] = []
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not self.waiting:
            return super().select(timeout)
        self._turns += 1
        found = super().select(0)
        if (timeout == 0 or found) and self._turns < _MOST_TURNS:
            return found
        self._turns = 0
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
        return found


class IdleLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._idle = _IdleSelector()
        super().__init__(self._idle)

    async def settled(self) -> None:
        """Wait until everything that can be done without time passing is done. Disks must not have threads of
        their own for it (`ScratchDisk`)."""
        done = self.create_future()
        self._idle.waiting.append(done)
        await done


T = TypeVar("T")


class _Inline(Lane):
    """Does at once, on the loop, what it is asked to do: the files are in the system's memory, and a hop to a
    thread and back would take longer."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)

    def call(self, work: Callable[[], T], *, shortcut: Shortcut | None = None) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        try:
            loop.call_soon(_tell, done.set_result, done, work())
        except Exception as failed:
            loop.call_soon(_tell, done.set_exception, done, failed)
        return done


def _tell(tell: Callable[[Any], None], done: "asyncio.Future[Any]", what: object) -> None:
    """In the loop's next turn: as on any disk, others have theirs in between."""
    if not done.done():
        tell(what)


class _ScratchFile(RealFile):
    async def write_at(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        await super().write_at(offset, buffers)

    async def sync(self) -> None:
        """What the system has survives the process, and nothing else needs to be survived."""

    def _preallocate(self, size: int) -> None:
        if os.fstat(self._fd).st_size < size:
            os.ftruncate(self._fd, size)


class ScratchDisk(RealDisk):
    """Fills `Disk`."""

    def __init__(self) -> None:
        super().__init__()
        self._lane = _Inline()
        self._directories = self._lane

    async def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        descriptor = await self._call(path, partial(os.open, path, flags, 0o640))
        return _ScratchFile(path, descriptor, os.fstat(descriptor).st_size, self._lane, self._queues)

    async def make_dirs(self, directory: str) -> None:
        await self._call(directory, partial(os.makedirs, directory, 0o750, exist_ok=True))

    async def sync_dir(self, directory: str) -> None:
        await self._call(directory, partial(os.stat, directory))  # as for files, but it must be there


#: Beneath the test's own settings. Small files, since each test has new ones; no waiting for more members of a
#: group, as in Kafka's own set-ups for tests; and a disk that others fill is not this broker's business.
_DEFAULTS = {
    "storage.journal_file_bytes": "4MiB",
    "storage.low_water_bytes": "1MiB",
    "storage.high_water_bytes": "2MiB",
    "groups.initial_delay": "0s",
    "log.level": "info",
}
#: Delayed messages are looked for in good time, and rarely else: this wall clock does not jump on its own.
_HOLDING = HoldingSettings(load_ahead_s=3600.0, tick_s=1800.0)
#: A request has at most so much in a line: what a test puts in at once.
_LINE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Spec:
    """What a test wants. `ports`: by listener; `ahead_s`: what its clock was moved before a restart."""

    folder: str
    config: Mapping[str, str]
    ports: Mapping[str, int]
    ahead_s: float = 0.0
    silent_s: float = 0.0

    def load(self) -> Config:
        """ConfigError. The environment has no say: a test is the same on every machine."""
        listeners = {f"listeners.{name}": f"127.0.0.1:{port}" for name, port in self.ports.items()}
        try:
            return load(options={**_DEFAULTS, **listeners, **self.config, "data": f"{self.folder}/data"}).config
        except ConfigError as wrong:  # they are no options of a command here
            raise ConfigError(wrong.what.removeprefix("--"), hint=wrong.hint) from None


def run_broker(spec: Spec, tell: Callable[[dict[str, Any]], None], lifeline: int) -> None:
    """Until it is told to stop, or nobody is at the other end of `lifeline`; `tell`: where it listens."""
    with asyncio.Runner(loop_factory=IdleLoop) as runner:
        runner.run(_Broker(spec).run(tell, lifeline))


def try_broker(spec: Spec) -> None:
    """Start one, use it, and stop it: whatever is loaded when it is first needed is loaded then."""
    with asyncio.Runner(loop_factory=IdleLoop) as runner:
        runner.run(_Broker(spec).try_all())


class _Broker:
    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._config = spec.load()
        #: Two of them: clients' silence is moved only when the test says so.
        self._silence = MovableClock(RealClock(), ahead_s=spec.silent_s)
        self._clock = MovableClock(self._silence, ahead_s=spec.ahead_s)
        runtime = Runtime(self._clock, RealNetwork(), ScratchDisk(), random.SystemRandom(), RealResources())
        self._node = BrokerNode(runtime, self._config, holding=_HOLDING)
        self._stopping = asyncio.Event()
        self._looking: Looking

    async def try_all(self) -> None:
        await self._start()
        try:
            message: dict[str, Any] = {"key": None, "value": "", "headers": []}
            await self._looking.produce("warm-up", [message])
            await self._looking.messages("warm-up")
            await self._advance(10.0, silent_clients=False)
        finally:
            await self._node.close()

    async def run(self, tell: Callable[[dict[str, Any]], None], lifeline: int) -> None:
        set_up_logs(self._config.log.level, self._config.log.format)
        asyncio.get_running_loop().add_reader(lifeline, os._exit, 1)
        await self._start()
        server = await asyncio.start_unix_server(self._serve, f"{self._spec.folder}/control", limit=_LINE_BYTES)
        gc.freeze()
        tell({"addresses": {name: str(address) for name, address in self._node.addresses.items()}})
        await self._stopping.wait()
        server.close()
        await self._node.close()

    async def _start(self) -> None:
        await self._node.start()
        security = self._config.auth
        role = security.superusers[0] if security.superusers else security.anonymous_role
        self._looking = Looking(self._node.composed, role)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request per connection."""
        try:
            line = await reader.readline()
            if not line:
                return
            request = json.loads(line)
            try:
                answer: dict[str, Any] = {"answer": await self._answer(request.pop("do"), request)}
            except (WeirError, ValueError) as refused:
                answer = {"refused": str(refused)}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except ConnectionError:
            pass  # the test has gone on without it
        finally:
            writer.close()

    async def _answer(self, what: str, request: dict[str, Any]) -> Any:
        look = self._looking
        actions: dict[str, Callable[..., Awaitable[Any]]] = {
            "advance": self._advance,
            "backlogs": look.backlogs,
            "messages": look.messages,
            "now": self._now,
            "pid": self._pid,
            "produce": look.produce,
            "stop": self._stop,
            "topics": look.topics,
            "wait_empty": look.wait_empty,
            "wait_messages": look.wait_messages,
        }
        return await actions[what](**request)

    async def _now(self) -> dict[str, float]:
        """Its wall clock, and what it was moved by, of which clients' silence so much."""
        return {
            "wall_ms": self._clock.wall_ms(),
            "ahead_s": self._clock.ahead_s,
            "silent_s": self._silence.ahead_s,
        }

    async def _pid(self) -> int:
        return os.getpid()

    async def _advance(self, seconds: float, *, silent_clients: bool) -> dict[str, float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, IdleLoop)
        await self._clock.advance(seconds, loop.settled)
        if silent_clients:
            await self._clock.silence(seconds, loop.settled)
        return await self._now()

    async def _stop(self) -> None:
        """In order, after this is answered."""
        asyncio.get_running_loop().call_later(0.001, self._stopping.set)
