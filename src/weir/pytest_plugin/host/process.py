"""One broker's process: a whole Weir on a clock that can be moved, and what a test asks of it."""

import asyncio
import gc
import json
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weir.model.errors import ConfigError, WeirError
from weir.pytest_plugin.host.idle_loop import IdleLoop
from weir.pytest_plugin.host.looking import Looking
from weir.pytest_plugin.host.scratch_disk import ScratchDisk
from weir.runtime.interfaces import Runtime
from weir.runtime.movable import MovableClock
from weir.runtime.real import RealClock
from weir.runtime.real_net import RealNetwork
from weir.runtime.real_resources import RealResources
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load
from weir.server.config.tree import Config
from weir.server.logs import set_up_logs
from weir.stream.holding.settings import HoldingSettings

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
