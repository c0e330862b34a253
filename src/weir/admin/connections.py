"""Connections of every protocol to this broker: all for who monitors it, their own for everybody else."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from weir.admin.routing import Call, Route
from weir.broker.api import Authoriser

_MOST = 10_000


class ConnectionBody(Struct, rename="camel"):
    """`protocol`: Pulsar, Kafka or AMQP. `client`: what it calls itself."""

    broker: str
    protocol: str
    peer: str
    role: str
    client: str


class ConnectionRoutes:
    def __init__(self, authoriser: Authoriser, connections: Callable[[], Sequence[ConnectionBody]]) -> None:
        self._authoriser = authoriser
        self._connections = connections

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/admin/weir/v1/connections",
                "Who is connected to this broker; for who does not monitor it, their own role's connections.",
                self._list,
                answer=list[ConnectionBody],
                tag="connections",
            )
        ]

    async def _list(self, call: Call) -> list[ConnectionBody]:
        sees_all = self._authoriser.may_monitor(call.role)
        return [one for one in self._connections() if sees_all or one.role == call.role][:_MOST]
