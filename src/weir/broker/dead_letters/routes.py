"""Where dead letters can go: exchanges and queues of a namespace, and topics of any, whichever broker has them."""

from typing import Protocol

from weir.broker.api import NamespaceExchanges, Queue
from weir.model.errors import WeirError
from weir.model.topics import NamespaceName, TopicName


class LetterRoutes(Protocol):
    """As a sender in one namespace sees them."""

    async def exchanges(self) -> NamespaceExchanges: ...

    async def target(self, name: str) -> Queue:
        """Whoever has it. QueueNotFoundError."""

    async def topic(self, name: TopicName, *, create: bool) -> Queue:
        """A topic, or a partition of one, as a queue: what is sent there waits for the queue's consumers, whoever
        else reads it. QueueNotFoundError if it is not there and shall not be made."""


class RouteSource(Protocol):
    """Knows the queues of every namespace."""

    async def open(self, namespace: NamespaceName) -> LetterRoutes:
        """NamespaceNotFoundError."""


class LetterGate:
    """Topics have it before the queues are there to which letters go; until then they wait."""

    def __init__(self) -> None:
        self._source: RouteSource | None = None

    def lead_to(self, source: RouteSource) -> None:
        self._source = source

    def routes(self, namespace: NamespaceName) -> LetterRoutes:
        """As senders of the namespace see them."""
        return _Routes(self, namespace)

    async def open(self, namespace: NamespaceName) -> LetterRoutes:
        if self._source is None:
            raise WeirError("the broker has no queues yet", hint="try again")
        return await self._source.open(namespace)


class _Routes:
    """Fills `LetterRoutes`: looked for each time, as namespaces come and go."""

    def __init__(self, gate: LetterGate, namespace: NamespaceName) -> None:
        self._gate = gate
        self._namespace = namespace

    async def exchanges(self) -> NamespaceExchanges:
        return await (await self._gate.open(self._namespace)).exchanges()

    async def target(self, name: str) -> Queue:
        return await (await self._gate.open(self._namespace)).target(name)

    async def topic(self, name: TopicName, *, create: bool) -> Queue:
        return await (await self._gate.open(self._namespace)).topic(name, create=create)
