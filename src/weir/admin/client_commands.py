"""Commands to connected clients, of the protocols whose clients take any: RocketMQ's."""

from typing import Annotated, Protocol

from msgspec import Meta, Struct

from weir.admin.routing import Call, Natural, Route
from weir.broker.api import Authoriser
from weir.model.topics import TopicName

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
