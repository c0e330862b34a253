"""A whole Weir in this process, on a thread of its own, whose Kafka gateway's insides are in reach."""

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from ssl import SSLContext
from typing import Any

from weir.broker.access.security import Authoriser, TopicGuard
from weir.broker.broker import Broker
from weir.broker.groups.owned import GroupAccess
from weir.broker.registry.registry import Registry
from weir.broker.transactions.owned import TransactionAccess
from weir.gateway.kafka.catalog import Catalog
from weir.gateway.kafka.connection.server import KafkaServer
from weir.gateway.kafka.services import Services
from weir.runtime.real import real_runtime
from weir.server import config_parts
from weir.server.config_load import load
from weir.server.standalone import Standalone
from weir.testing.kafka.stage import Peer
from weir.testing.loop_thread import Call, LoopThread

_TIMEOUT_S = 120.0


class _Composed(Standalone):
    """As `weir up` composes it, with its parts in reach, and settings and limits of our own."""

    changes: dict[str, Any]
    limits: dict[str, Any]
    server: KafkaServer
    services: Services

    async def _serve_kafka(
        self,
        broker: Broker,
        registry: Registry,
        authoriser: Authoriser,
        catalog: Catalog,
        tls: SSLContext | None,
        *,
        groups: GroupAccess,
        transactions: TransactionAccess,
    ) -> None:
        guard = TopicGuard(authoriser)
        settings = config_parts.kafka_settings(self._config, self._bound["kafka"])
        settings = replace(settings, limits=replace(settings.limits, **self.limits), **self.changes)
        self.services = Services(
            self._runtime.clock,
            broker,
            registry,
            catalog,
            guard,
            authoriser,
            settings,
            groups=groups,
            transactions=transactions,
        )
        self.server = KafkaServer(self._runtime, self.services)
        await self.server.start()
        self._started.push_async_callback(self.server.close)


class KafkaNode:
    """Starts and stops a broker; everything of it runs on the loop of one thread."""

    def __init__(
        self,
        folder: Path,
        *settings: str,
        changes: dict[str, Any] | None = None,
        limits: dict[str, Any] | None = None,
    ) -> None:
        """Settings as for `weir up --set`; changes of the gateway's settings, and of its sessions' limits."""
        self.folder = folder
        self._settings = settings
        self._changes = changes or {}
        self._limits = limits or {}
        self._loop = LoopThread()

    def call(self, work: Call, timeout_s: float = _TIMEOUT_S) -> Any:
        """Run a coroutine on the broker's loop, and wait for it."""
        return self._loop.call(work, timeout_s)

    def begin(self, work: Call) -> "Future[Any]":
        """Run a coroutine on the broker's loop, without waiting for it."""
        return self._loop.begin(work)

    def start(self) -> "KafkaNode":
        self.call(self._start)
        return self

    async def _start(self) -> None:
        assignments = [
            f"data={self.folder}",
            "listeners.pulsar=",
            "listeners.kafka=127.0.0.1:0",
            "listeners.http=",
            "storage.low_water_bytes=0",
            "storage.high_water_bytes=0",
            *self._settings,
        ]
        self._up = _Composed(real_runtime(), load(assignments=assignments).config)
        self._up.changes, self._up.limits = self._changes, self._limits
        await self._up.start()

    def stop(self) -> None:
        self.call(self._up.close)
        self._loop.stop()

    @property
    def bootstrap(self) -> str:
        return str(self._up.addresses["kafka"])

    @property
    def address(self) -> tuple[str, int]:
        bound = self._up.addresses["kafka"]
        return bound.host, bound.port

    @property
    def server(self) -> KafkaServer:
        return self._up.server

    @property
    def services(self) -> Services:
        return self._up.services

    async def peer(self) -> Peer:
        """A client that speaks requests, connected over a socket; to be used on the broker's loop."""
        return Peer(await real_runtime().net.connect(*self.address, timeout_s=_TIMEOUT_S))
