"""Commands to connected clients, of the protocols whose clients take any: RocketMQ's.

Connections of every protocol to this broker: all for who monitors it, their own for everybody else.

Access keys: what RocketMQ's clients sign their calls with.
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


_ONE = "/admin/weir/v1/clients/{client}"
_ABOUT = {404: "no such client, or topic", 412: "not possible, or it did not answer"}


class ClientCommands(Protocol):
    async def stack(self, client_id: str) -> str:
        """What the threads of the client are doing."""

    async def verify(self, client_id: str, topic: TopicName, offset: int) -> str:
        """The code with which a consumer answers when it tries the message at an offset."""


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
                "What the threads of a RocketMQ client are doing, as it says.",
                self._stack,
                answer=StackBody,
                refusals=_ABOUT,
                tag="connections",
            ),
            Route(
                "POST",
                f"{_ONE}/verify",
                "Let a RocketMQ consumer try a message, whoever has it.",
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
                "The access key and the secret key by which RocketMQ's clients are a role.",
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
