"""Exchanges and bindings of a namespace, and where a message goes by them.

For a gateway that has exchanges: it opens the namespace once, then asks `route` per message, and never waits.
Queues are names here; which of them exist, and how long they last, is known to whoever serves them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from weir.model.exchanges import Binding, Exchange
from weir.model.registry import Action
from weir.model.topics import NamespaceName


class Routed(NamedTuple):
    """The queues of a message: sorted, each once."""

    queues: tuple[str, ...]
    #: An exchange on the way matched nothing, and an alternate took over.
    alternate: bool = False
    #: The default exchange had a say: it takes routing keys for names of queues, without looking whether there are
    #: such queues. Those that there are not do not count.
    by_name: bool = False

    @property
    def unroutable(self) -> bool:
        return not self.queues


class NamespaceExchanges(Protocol):
    """All of a namespace. Reads are from memory; what other brokers change follows by a watch.

    Durable exchanges, and bindings between durable things, are in the metadata and seen by all brokers. Others are
    gone with the broker that was asked; if it is not the only one, the others see them, too."""

    def find(self, name: str) -> Exchange | None: ...

    def get(self, name: str) -> Exchange:
        """ExchangeNotFoundError if there is none: a passive declaration."""

    def exchanges(self) -> Sequence[Exchange]:
        """By name, the predeclared ones included."""

    def bindings(self, *, source: str | None = None, queue: str | None = None) -> Sequence[Binding]:
        """All, those of an exchange, or those that lead to a queue. The default exchange's, which follow from the
        names of queues, are not among them."""

    async def declare(self, role: str, exchange: Exchange) -> Exchange:
        """Make it, unless there is one like it; answers the one that there is. ExchangeRefusedError,
        InequivalentExchangeError, ExchangeArgumentError, TooManyError."""

    async def delete(self, role: str, name: str, *, if_unused: bool = False) -> None:
        """With its bindings; fine if it is not there. ExchangeRefusedError, ExchangeInUseError."""

    async def bind(self, role: str, binding: Binding, *, durable: bool) -> None:
        """Fine if it is there already. `durable`: whether the destination is, if it is a queue; that the queue
        exists is the caller's to check. ExchangeNotFoundError, ExchangeRefusedError, ExchangeArgumentError,
        TooManyError."""

    async def unbind(self, role: str, binding: Binding) -> None:
        """Fine if it is not there. An exchange that is deleted with its last binding may go, and those that were
        bound to it alone."""

    async def forget_queue(self, queue: str) -> None:
        """Take out every binding to a queue, before the queue itself is deleted: so what is cut short is begun
        again with it."""

    def check_publish(self, role: str, exchange: str) -> None:
        """Whether the role may publish to it: ExchangeNotFoundError, ExchangeRefusedError if it is internal,
        NotAuthorisedError. Holds while `Guard.revision` and the exchange are the same. To the default exchange
        everybody may; what counts is whether the role may produce to the queue."""

    def check_key(self, role: str, exchange: Exchange, key: str, action: Action) -> None:
        """Whether the role may publish to an exchange with this routing key, or bind from it by it:
        NotAuthorisedError. Says no for topic exchanges alone, where it was permitted some keys."""

    def route(self, exchange: str, keys: tuple[str, ...], headers: Mapping[str, Any]) -> Routed:
        """Where a message with these routing keys (its own, CC and BCC) and headers goes; ExchangeNotFoundError.
        Changes nothing, asks nobody."""


class Exchanges(Protocol):
    """The exchanges of all namespaces. What nobody opened costs nothing."""

    async def open(self, namespace: NamespaceName) -> NamespaceExchanges:
        """NamespaceNotFoundError. Known from the metadata the first time, from memory later on."""
