"""A whole Weir in this process, on a thread of its own, whose Kafka gateway's insides are in reach."""

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from weir.gateway.kafka.context import Services
from weir.gateway.kafka.gateway import KafkaServer
from weir.gateway.kafka.settings import KafkaSettings
from weir.runtime.budgets import PATIENCE_S, RequestBudget
from weir.runtime.real import real_runtime
from weir.server.broker_node import BrokerNode
from weir.server.config.load import load
from weir.testing.kafka.stage import Peer
from weir.testing.loop_thread import Call, LoopThread

_TIMEOUT_S = 120.0


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
            "listeners.amqp=",
            "listeners.rocketmq=",
            "storage.low_water_bytes=0",
            "storage.journal_file_bytes=4MiB",
            "storage.high_water_bytes=0",
            *self._settings,
        ]
        config = load(assignments=assignments).config
        budget = RequestBudget(
            self._changes.get("max_received_bytes", config.limits.received_bytes),
            self._changes.get("receive_patience_s", PATIENCE_S),
        )
        self._up = BrokerNode(real_runtime(), config, adjust_kafka=self._adjust, request_budget=budget)
        await self._up.start()

    def _adjust(self, settings: KafkaSettings) -> KafkaSettings:
        return replace(settings, limits=replace(settings.limits, **self._limits), **self._changes)

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
        return self._up.kafka_servers["kafka"]

    @property
    def services(self) -> Services:
        return self.server.services

    async def peer(self) -> Peer:
        """A client that speaks requests, connected over a socket; to be used on the broker's loop."""
        return Peer(await real_runtime().net.connect(*self.address, timeout_s=_TIMEOUT_S))
