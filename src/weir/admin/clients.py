"""Routes for client connections of all protocols, commands to RocketMQ clients, and RocketMQ access keys.

Roles with monitoring permission see all connections of this broker; other roles see only their own. RocketMQ
clients sign their calls with access keys.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from weir.broker.api.security import Authoriser
from weir.model.registry import check_role
from weir.model.topics import TopicName
from weir.rest.routes import Call, Natural, Route

_MOST = 10_000


class ConnectionBody(Struct, rename="camel"):
    """`protocol`: Pulsar, Kafka or AMQP. `client`: the name or ID that the client sends."""

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
                "Connections to this broker; without monitoring permission, those of the caller's role.",
                self._list,
                answer=list[ConnectionBody],
                tag="connections",
            )
        ]

    async def _list(self, call: Call) -> list[ConnectionBody]:
        sees_all = self._authoriser.may_monitor(call.role)
        return [one for one in self._connections() if sees_all or one.role == call.role][:_MOST]


_ONE = "/admin/weir/v1/clients/{client}"
_ABOUT = {404: "no such client, or topic", 412: "not possible, or it did not answer"}


class ClientCommands(Protocol):
    async def stack(self, client_id: str) -> str:
        """Stack traces of the client's threads."""

    async def verify(self, client_id: str, topic: TopicName, offset: int) -> str:
        """Let a consumer process the message at an offset; returns the client's status code."""


class StackBody(Struct):
    stack: str


class TryBody(Struct):
    """A topic, or a partition, in full; and an offset of it."""

    topic: Annotated[str, Meta(max_length=4_000)]
    offset: Natural


class TriedBody(Struct):
    code: str


class ClientCommandRoutes:
    def __init__(self, authoriser: Authoriser, commands: ClientCommands) -> None:
        self._authoriser = authoriser
        self._commands = commands

    def routes(self) -> list[Route]:
        return [
            Route(
                "POST",
                f"{_ONE}/stack",
                "Stack traces of a RocketMQ client's threads.",
                self._stack,
                answer=StackBody,
                refusals=_ABOUT,
                tag="connections",
            ),
            Route(
                "POST",
                f"{_ONE}/verify",
                "Let a RocketMQ consumer process a message, whatever the message's state.",
                self._verify,
                body=TryBody,
                answer=TriedBody,
                refusals=_ABOUT,
                tag="connections",
            ),
        ]

    async def _stack(self, call: Call) -> StackBody:
        self._authoriser.check_superuser(call.role)
        return StackBody(await self._commands.stack(call.path["client"]))

    async def _verify(self, call: Call) -> TriedBody:
        self._authoriser.check_superuser(call.role)
        body: TryBody = call.body
        topic = TopicName.parse(body.topic)
        return TriedBody(await self._commands.verify(call.path["client"], topic, body.offset))


class AccessKeyBody(Struct, rename="camel"):
    """`access_key`: the role's name."""

    access_key: str
    secret_key: str


class AccessKeyRoutes:
    def __init__(self, authoriser: Authoriser, secret_of: Callable[[str], str]) -> None:
        self._authoriser = authoriser
        self._secret_of = secret_of

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/admin/weir/v1/access-keys/{role}",
                "The access key and secret key with which RocketMQ clients authenticate as a role.",
                self._get,
                answer=AccessKeyBody,
                refusals={412: "this is no role"},
                tag="connections",
            )
        ]

    async def _get(self, call: Call) -> AccessKeyBody:
        self._authoriser.check_superuser(call.role)
        role = check_role(call.path["role"])
        return AccessKeyBody(role, self._secret_of(role))
