"""Supervised processes: started in order, restarted when they die, stopped in reverse order.

The supervisor unregisters a broker whose process has ended, so that others need not wait for its lease. It also
reserves the ports of its processes before they run and while they restart.
"""

import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from weir.broker.cluster.registration import BROKER
from weir.broker.peers.peer_calls import LISTENER
from weir.broker.security.cluster_credentials import ClusterCredentialSettings, load_credentials
from weir.meta import keys
from weir.meta.connect import connect
from weir.meta.interfaces import MetaStore
from weir.meta.update import read
from weir.model.errors import WeirError
from weir.runtime.interfaces import Clock, Runtime
from weir.wire.registry import encode_broker

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
#: A process that ran this long has started successfully.
_SETTLED_S = 30.0
_LOOK_S = 0.02
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 30.0
#: The longest stored line of a process's log.
_MAX_LINE_BYTES = 64 * 1024
_PR_SET_PDEATHSIG = 1
#: How long to wait for the last output of an ended process.
_LAST_WORDS_S = 5.0
#: The prefix of the reason that a failing `weir` prints.
_COMPLAINT = "weir: "
#: Roles of processes that are Weirs, which survive SIGHUP.
_RELOADING = ("broker", "bookie", "storage")


class ChildFailedError(WeirError):
    """A process of this Weir ended instead of serving."""

    hint = "see its lines in the log above"


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A process: its name, role, command, and readiness check."""

    name: str
    role: str
    command: Sequence[str]
    #: The process writes this file once it serves; the supervisor removes it before each start.
    ready_file: Path | None = None
    #: The readiness check, polled, for a process without such a file.
    probe: Callable[[], Awaitable[bool]] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    #: The delay before a restart: the first and the longest.
    first_pause_s: float = _FIRST_PAUSE_S
    pause_s: float = _LONGEST_PAUSE_S


class Child:
    """One process over its restarts."""

    def __init__(
        self,
        spec: ChildSpec,
        clock: Clock,
        on_restart: Callable[[], None],
        on_death: Callable[[str], Awaitable[None]],
    ) -> None:
        self.spec = spec
        self._on_restart = on_restart
        self._on_death = on_death
        self.restarts = 0
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._words: asyncio.Task[str] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int:
        """The process id of the current or last process."""
        return 0 if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process and wait until it serves; ChildFailedError if it does not. Then keep it running."""
        await self._launch()
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                while not await self.serves():
                    if not self.running:
                        raise await self._why_not_started()
                    await self._clock.sleep(_LOOK_S)
        except TimeoutError:
            raise ChildFailedError(f"{self.spec.name} does not serve after {_START_TIMEOUT_S:g} s") from None
        self._watching = asyncio.get_running_loop().create_task(self._keep(), name=f"keep {self.spec.name}")

    async def serves(self) -> bool:
        """Whether it is ready."""
        if not self.running:
            return False
        if self.spec.ready_file is not None:
            return self.spec.ready_file.exists()
        return self.spec.probe is None or await self.spec.probe()

    def hang_up(self) -> None:
        if self._process is not None and self.running:
            _send(self._process, signal.SIGHUP)

    async def stop(self) -> None:
        """Stop it in order, or kill it after a timeout."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            _send(process, signal.SIGTERM)
            try:
                async with asyncio.timeout(_STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                log.warning("%s did not stop in time and was killed", self.spec.name)
                _send(process, signal.SIGKILL)
                await process.wait()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _launch(self) -> None:
        if self.spec.ready_file is not None:
            self.spec.ready_file.unlink(missing_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            *self.spec.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **self.spec.environment},
            limit=_MAX_LINE_BYTES,
            # The supervisor forwards terminal signals, and no child outlives it.
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        self._words = asyncio.get_running_loop().create_task(
            _forward(self.spec.name, self._process), name=f"log {self.spec.name}"
        )

    async def _why_not_started(self) -> ChildFailedError:
        """The reason that a Weir process printed, if it did."""
        if self._words is not None:
            done, _ = await asyncio.wait({self._words}, timeout=_LAST_WORDS_S)
            if done and (said := self._words.result()):
                return ChildFailedError(f"{self.spec.name} did not start: {said}", hint="")
        return ChildFailedError(f"{self.spec.name} ended with code {self._code()} while it started")

    async def _keep(self) -> None:
        pause_s = self.spec.first_pause_s
        while True:
            assert self._process is not None
            began = self._clock.monotonic()
            await self._process.wait()
            if self._stopping:
                return
            if self._clock.monotonic() - began > _SETTLED_S:
                pause_s = self.spec.first_pause_s
            said = "%s ended with code %s, and is started again in %.1f s"
            log.warning(said, self.spec.name, self._code(), pause_s)
            await self._on_death(self.spec.name)
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, self.spec.pause_s)
            self.restarts += 1
            await self._launch()
            while self.running and not await self.serves():
                await self._clock.sleep(_LOOK_S)
            if self.running:
                self._on_restart()

    def _code(self) -> int | None:
        return None if self._process is None else self._process.returncode


class Supervisor:
    """Stages of processes: those of one stage start together, once all earlier ones serve."""

    def __init__(self, clock: Clock, on_restart: Callable[[], None] = lambda: None) -> None:
        """`on_restart` is called whenever a restarted process serves again."""
        self._clock = clock
        self._on_restart = on_restart
        #: Called with the name of each process that died, before its restart.
        self.on_death: Callable[[str], Awaitable[None]] = _nothing_to_do
        self._stages: list[list[Child]] = []

    @property
    def children(self) -> list[Child]:
        """Children in the order of their stages."""
        return [child for stage in self._stages for child in stage]

    async def add(self, specs: Sequence[ChildSpec]) -> list[Child]:
        """Start one more stage, and wait until all of it serves."""
        stage = [Child(spec, self._clock, self._on_restart, self._died) for spec in specs]
        self._stages.append(stage)
        results = await asyncio.gather(*(child.start() for child in stage), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return stage

    def hang_up(self) -> int:
        """Send SIGHUP to all running Weirs; return their number."""
        found = [child for child in self.children if child.running and child.spec.role in _RELOADING]
        for child in found:
            child.hang_up()
        return len(found)

    async def _died(self, name: str) -> None:
        await self.on_death(name)

    async def close(self) -> None:
        """Stop every stage, the last first."""
        while self._stages:
            await asyncio.gather(*(child.stop() for child in self._stages.pop()))


async def _nothing_to_do(name: str) -> None:
    pass


def weir_command(*arguments: str) -> list[str]:
    """The command of this same Weir as another process."""
    return [sys.executable, "-m", "weir.cli.main", *arguments]


def settings(values: Mapping[str, str]) -> list[str]:
    """`--set` options."""
    return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]


async def _forward(name: str, process: asyncio.subprocess.Process) -> str:
    """Copy the process's output to standard error, with its name before each line; return the reason of its
    failure, if it printed one."""
    assert process.stdout is not None
    complaint = ""
    while True:
        try:
            line = await process.stdout.readline()
        except ValueError:  # longer than the limit
            continue
        if not line:
            return complaint
        text = line.decode(errors="replace").rstrip()
        if text.startswith(_COMPLAINT):
            complaint = text.removeprefix(_COMPLAINT)
        sys.stderr.write(f"[{name}] {text}\n")
        sys.stderr.flush()


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except ProcessLookupError:
        return


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


_LOOPBACK = "127.0.0.1"


class HeldPorts:
    """Ports that are bound without listening. Searches for a free port and outgoing connections skip them, also
    while their server restarts. A server that binds such a port explicitly, with address reuse, gets it."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], socket.socket] = {}

    def choose(self, wanted: Iterable[int], host: str = _LOOPBACK) -> list[int]:
        """Return each wanted port if it is free, else any free one (0: any). All are different."""
        return [self._bound(host, port) or self._bound(host, 0) for port in wanted]

    def hold(self, ports: Iterable[int], host: str = _LOOPBACK) -> list[int]:
        """Reserve ports that were chosen before; return those in use by other processes."""
        wanted = [port for port in ports if (host, port) not in self._held]
        return [port for port in wanted if not self._bound(host, port, reuse=True)]

    def close(self) -> None:
        for each in self._held.values():
            each.close()
        self._held.clear()

    def _bound(self, host: str, port: int, *, reuse: bool = False) -> int:
        """The port, or the one found for 0; 0 if it is in use."""
        made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            if reuse:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((host, port))
        except OSError:
            made.close()
            if port == 0:
                raise
            return 0
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # from now on, for the server of this port
        found: int = made.getsockname()[1]
        self._held[host, found] = made
        return found


#: If the store does not answer in time, the lease expires by itself.
_LIMIT_S = 2.0
_LEASE_S = 2.0


async def unregister(meta: MetaStore, broker_id: str, peer_port: int) -> bool:
    """Remove the broker's registration if it has this peer port, as that of the ended process had; return whether
    it did. A newer registration by another process stays."""
    found = await read(meta, keys.broker(broker_id), BROKER)
    if found is None or found.value.listeners.get(LISTENER, "").rpartition(":")[2] != str(peer_port):
        return False
    # As in an orderly stop, first announce that it accepts nothing any more. The announcement has a lease, so that
    # it expires if this process ends, too.
    lease = await meta.lease(_LEASE_S)
    last_word = encode_broker(replace(found.value, draining=True))
    await meta.put(found.key, last_word, expect=found.version, lease=lease)
    await lease.revoke()
    return True


class Unregistering:
    """Unregisters the brokers of one supervisor."""

    def __init__(self, runtime: Runtime, meta_url: str, secret: str, peer_ports: dict[str, int]) -> None:
        """`secret`: the secret's location, as in `cluster.secret`."""
        self._runtime = runtime
        self._meta_url = meta_url
        self._secret = secret
        self._peer_ports = peer_ports

    async def ended(self, name: str) -> None:
        """Unregister a broker whose process has ended and is not yet restarted."""
        port = self._peer_ports.get(name)
        if port is None:
            return
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._unregister(name, port)
        except (WeirError, TimeoutError, OSError) as failed:
            log.info("%s stays registered until its lease expires: %s", name, failed)

    async def _unregister(self, name: str, port: int) -> None:
        shown = await load_credentials(self._runtime.disk, ClusterCredentialSettings(secret=self._secret))
        meta = await connect(self._meta_url, self._runtime, secret=shown.secret)
        try:
            if await unregister(meta, name, port):
                log.info("%s is unregistered: its process has ended", name)
        finally:
            await meta.close()
