"""`weir up --workers N`: one folder, N broker processes over one storage process, under one supervisor.

A TCP proxy at one address passes new clients to the brokers in turn. Kafka and Pulsar clients learn the owner
there and connect to its own address, so only the first requests of each client, and admin requests, use the proxy.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from weir.model.errors import ConnectionLostError, FileLockedError, NetworkError
from weir.runtime.interfaces import Connection, Listener, Runtime
from weir.runtime.tasks import TaskScope
from weir.server.addresses import Address
from weir.server.broker_node import INSTANCE, new_instance
from weir.server.config.load import PORT_OFFSET
from weir.server.config.tree import Config
from weir.server.listeners import naming_setting
from weir.server.node import Node
from weir.server.supervisor import ChildSpec, HeldPorts, Supervisor, Unregistering, settings, weir_command

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 2.0
_ACCEPT_PAUSE_S = 0.1
_MAX_CONNECTIONS = 10_000


class Entrance:
    """The TCP proxy: listens at one address and knows the brokers. `start`, then `close`."""

    def __init__(self, runtime: Runtime, at: Address, brokers: Callable[[], Sequence[Address]]) -> None:
        """`brokers`: available brokers, called for every new client."""
        self._runtime = runtime
        self._at = at
        self._brokers = brokers
        self._listener: Listener | None = None
        self._turn = 0
        self._open = 0
        self._tasks = TaskScope(f"entrance {at}")

    @property
    def address(self) -> Address:
        port = self._at.port if self._listener is None else self._listener.port
        return Address(self._at.host, port)

    async def bind(self) -> None:
        """Bind the address, or raise AddressInUseError; early clients wait."""
        self._listener = await self._runtime.net.listen(self._at.host, self._at.port)

    def start(self) -> None:
        if self._listener is not None:
            self._tasks.spawn(self._accept(self._listener), "accept")

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        await self._tasks.close()

    async def _accept(self, listener: Listener) -> None:
        while True:
            try:
                connection = await listener.accept()
            except ConnectionLostError:
                return
            except NetworkError as failure:
                log.warning("cannot accept a connection: %s", failure)
                await self._runtime.clock.sleep(_ACCEPT_PAUSE_S)
                continue
            if self._open >= _MAX_CONNECTIONS:
                connection.abort()
                continue
            self._open += 1
            self._tasks.spawn(self._serve(connection), "newcomer")

    async def _serve(self, near: Connection) -> None:
        far: Connection | None = None
        try:
            far = await self._reach()
            if far is None:
                near.abort()
                return
            passing = [asyncio.ensure_future(_pass(near, far)), asyncio.ensure_future(_pass(far, near))]
            try:
                await asyncio.wait(passing)
            finally:
                for task in passing:
                    task.cancel()
        finally:
            self._open -= 1
            near.close()
            if far is not None:
                far.close()

    async def _reach(self) -> Connection | None:
        """A connection to the next broker in turn that answers."""
        brokers = self._brokers()
        self._turn += 1
        for step in range(len(brokers)):
            where = brokers[(self._turn + step) % len(brokers)]
            try:
                return await self._runtime.net.connect(where.host, where.port, timeout_s=_CONNECT_TIMEOUT_S)
            except NetworkError as failure:
                log.debug("%s does not answer: %s", where, failure)
        return None


async def _pass(source: Connection, sink: Connection) -> None:
    try:
        while data := await source.receive():
            sink.write([data])
            await sink.drain()
    except NetworkError:
        sink.abort()
        return
    sink.close()


_LOOPBACK = "127.0.0.1"
_LISTENERS = (
    "pulsar",
    "pulsar_tls",
    "kafka",
    "kafka_tls",
    "amqp",
    "amqps",
    "rocketmq",
    "rocketmq_tls",
    "http",
    "https",
)
#: The distance of worker ports: worker n's own ports are n + 1 times this above the proxy's.
PORT_STEP = 10


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The configuration source of each process, the same as the supervisor's."""

    config_file: str | None
    assignments: tuple[str, ...]
    workers: int
    accept_loss: bool = False


class Workers(Node):
    """Serves at the configured addresses, where new clients reach any worker. `close` stops the workers first,
    after they have handed over and answered, then the storage."""

    def __init__(
        self,
        runtime: Runtime,
        config: Config,
        options: WorkerOptions,
        *,
        on_locked: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_locked` is called once this process has locked the data folder."""
        self._on_locked = on_locked
        #: Every worker confirms it to commands: new clients reach any of them.
        self.instance = new_instance(runtime.rng)
        self._runtime = runtime
        self._config = config
        self._options = options
        self._supervisor = Supervisor(runtime.clock)
        self._entrances: dict[str, Entrance] = {}
        self._own: dict[str, list[Address]] = {}
        self._ports = HeldPorts()
        super().__init__()
        self._run = Path(os.path.abspath(config.data)) / "run"

    @property
    def addresses(self) -> dict[str, Address]:
        return {name: entrance.address for name, entrance in self._entrances.items()}

    @property
    def supervisor(self) -> Supervisor:
        return self._supervisor

    async def _start(self) -> None:
        config = self._config
        self._started.callback(self._ports.close)
        for name in _LISTENERS:
            address: Address | None = getattr(config.listeners, name)
            if address is not None:
                await self._enter(name, address)
        await self._lock()
        secret = self._run / "secret"
        _write_secret(secret)
        meta, bookie, *peers = self._ports.choose([0] * (2 + self._options.workers))
        self._started.push_async_callback(self._supervisor.close)
        url, ports = f"weir://{_LOOPBACK}:{meta}", {_worker_name(n): peer for n, peer in enumerate(peers)}
        self._supervisor.on_death = Unregistering(self._runtime, url, f"file:{secret}", ports).ended
        await self._supervisor.add([self._storage(secret, meta, bookie)])
        await self._supervisor.add([self._worker(n, secret, url, peer) for n, peer in enumerate(peers)])
        for entrance in self._entrances.values():
            entrance.start()

    async def _lock(self) -> None:
        self._run.mkdir(parents=True, exist_ok=True)
        try:
            lock = await self._runtime.disk.lock(f"{self._run}/LOCK")
        except FileLockedError:
            raise FileLockedError(f"another `weir up` runs on {self._config.data}") from None
        self._started.push_async_callback(lock.release)
        self._on_locked()

    async def _enter(self, name: str, address: Address) -> None:
        entrance = Entrance(self._runtime, address, lambda: self._alive(name))
        with naming_setting(name):
            await entrance.bind()
        self._started.push_async_callback(entrance.close)
        self._entrances[name] = entrance
        wanted = [address.port and address.port + PORT_STEP * (n + 1) for n in range(self._options.workers)]
        ports = self._ports.choose([port if port < 65536 else 0 for port in wanted], _bindable(address.host))
        self._own[name] = [Address(address.host, port) for port in ports]

    def _alive(self, name: str) -> list[Address]:
        """Addresses of the workers: running ones first."""
        workers = [child for child in self._supervisor.children if child.spec.role == "broker"]
        order = sorted(range(len(workers)), key=lambda n: not workers[n].running)
        return [_reached(self._own[name][n]) for n in order if workers[n].running]

    def _storage(self, secret: Path, meta: int, bookie: int) -> ChildSpec:
        ready = self._run / "storage.json"
        options = [
            "--data",
            self._config.data,
            "--meta",
            f"{_LOOPBACK}:{meta}",
            "--bookie",
            f"{_LOOPBACK}:{bookie}",
        ]
        options += ["--accept-loss"] if self._options.accept_loss else []
        own = settings({"cluster.secret": f"file:{secret}"})
        return self._spec("storage", "storage", ["storage", *options], own, ready)

    def _worker(self, number: int, secret: Path, meta_url: str, peer: int) -> ChildSpec:
        name = _worker_name(number)
        values = {f"listeners.{listener}": str(own[number]) for listener, own in self._own.items()}
        values |= {
            PORT_OFFSET: "0",  # the ports include the offset
            "listeners.peer": f"{_LOOPBACK}:{peer}",
            "cluster.meta": meta_url,
            "cluster.name": name,
            "cluster.secret": f"file:{secret}",
            "storage.quorum": "1/1/1",
        }
        return self._spec(name, "broker", ["broker"], settings(values), self._run / f"{name}.json")

    def _spec(self, name: str, role: str, command: list[str], own: list[str], ready: Path) -> ChildSpec:
        given = [] if self._options.config_file is None else ["--config", self._options.config_file]
        given += [part for assignment in self._options.assignments for part in ("--set", assignment)]
        arguments = [*command, *given, *own, "--ready-file", str(ready)]
        return ChildSpec(name, role, weir_command(*arguments), ready, environment={INSTANCE: self.instance})


def _worker_name(number: int) -> str:
    return f"worker-{number}"


def _write_secret(path: Path) -> None:
    """A secret of this start, for its processes; only users with read access to the folder can read it."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(48))


def _bindable(host: str) -> str:
    return host if host not in ("", "::") else "0.0.0.0"


def _reached(address: Address) -> Address:
    """The address as reachable from this machine."""
    return Address(_LOOPBACK if address.host in ("", "0.0.0.0", "::") else address.host, address.port)
