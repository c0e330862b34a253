"""Telling clients on their telemetry streams that what holds for their consumer group has changed."""

from collections.abc import Callable
from typing import Any

from weir.gateway.rocketmq.clients import Client, Clients
from weir.model.consumer_groups import GroupSettings
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.wire.rocketmq.proto import api

_LOOK_S = 1.0


class Announcing:
    """Looks at what holds while any client is there that wants to know."""

    def __init__(self, clock: Clock, clients: Clients) -> None:
        self._clock = clock
        self._clients = clients
        self._tasks = TaskScope("rocketmq settings")
        self._watched: dict[str, tuple[Client, GroupSettings, Callable[[], GroupSettings], Callable[[], Any]]] = {}
        self._looking = False

    def watch(self, client: Client, now: Callable[[], GroupSettings], answer: Callable[[], Any]) -> None:
        """The client was told what holds `now`; `answer`: what it is told of that, as RocketMQ's settings."""
        self._watched[client.id] = (client, now(), now, answer)
        if not self._looking:
            self._looking = True
            self._tasks.spawn(self._look(), "look")

    async def _look(self) -> None:
        while self._watched:
            await self._clock.sleep(_LOOK_S)
            for client_id, (client, told, now, answer) in list(self._watched.items()):
                if self._clients.find(client_id) is not client:
                    if self._watched[client_id][0] is client:
                        del self._watched[client_id]
                elif (settings := now()) != told:
                    status = api.Status(code=api.Code.OK, message="OK")
                    if client.tell(api.TelemetryCommand(status=status, settings=answer())):
                        self._watched[client_id] = (client, settings, now, answer)
        self._looking = False

    async def close(self) -> None:
        await self._tasks.close()
