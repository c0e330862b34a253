"""The same helpers for tests that are coroutines: none of them holds up the test's event loop."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from weir.pytest_plugin.durations import Duration
from weir.pytest_plugin.messages import Message

if TYPE_CHECKING:
    from weir.pytest_plugin.broker import WeirBroker


class AsyncHelpers:
    """Each does what `WeirBroker` does under the same name, on a thread."""

    def __init__(self, broker: "WeirBroker") -> None:
        self._broker = broker

    async def advance(self, duration: Duration, *, silent_clients: bool = False) -> datetime:
        """`clock.advance`."""
        return await asyncio.to_thread(self._broker.clock.advance, duration, silent_clients=silent_clients)

    async def produce(
        self,
        topic: str,
        *values: object,
        key: bytes | str | None = None,
        headers: Mapping[str, object] | None = None,
        partition: int | None = None,
        delay: Duration = 0,
    ) -> None:
        await asyncio.to_thread(
            self._broker.produce, topic, *values, key=key, headers=headers, partition=partition, delay=delay
        )

    async def messages(self, topic: str) -> list[Message]:
        return await asyncio.to_thread(self._broker.messages, topic)

    async def wait_for(
        self,
        topic: str,
        count: int = 1,
        timeout: Duration = 10,
        *,
        where: Callable[[Message], bool] | None = None,
    ) -> list[Message]:
        return await asyncio.to_thread(self._broker.wait_for, topic, count, timeout, where=where)

    async def wait_until_empty(self, topic: str, subscription: str | None = None, timeout: Duration = 10) -> None:
        await asyncio.to_thread(self._broker.wait_until_empty, topic, subscription, timeout)

    async def backlogs(self, topic: str, subscription: str | None = None) -> dict[str, int]:
        return await asyncio.to_thread(self._broker.backlogs, topic, subscription)

    async def topics(self) -> list[str]:
        return await asyncio.to_thread(self._broker.topics)

    async def start(self) -> None:
        await asyncio.to_thread(self._broker.start)

    async def stop(self) -> None:
        await asyncio.to_thread(self._broker.stop)

    async def kill(self) -> None:
        await asyncio.to_thread(self._broker.kill)

    async def restart(self) -> None:
        await asyncio.to_thread(self._broker.restart)
