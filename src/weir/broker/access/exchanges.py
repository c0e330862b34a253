"""What roles may do with exchanges: AMQP's configure, write and read in the words of Weir's grants.

Write is PRODUCE, read is CONSUME, configure is both of them, or to administer the tenant, unless the role was
given patterns of what it may configure. They are asked for on the name of the exchange as if it were a topic's,
as RabbitMQ's patterns of names are for queues and exchanges alike; so a grant on that name, on the namespace or
on the tenant counts. All that maps one on the other is here.
"""

from weir.broker.access.security import Authoriser
from weir.broker.api import Scope
from weir.model.errors import InvalidNameError
from weir.model.exchanges import DEFAULT_EXCHANGE, Binding, Exchange, ExchangeType
from weir.model.queues import topic_of_queue
from weir.model.registry import Action
from weir.model.topics import NamespaceName


class ExchangeAccess:
    """Every check raises NotAuthorisedError."""

    def __init__(self, authoriser: Authoriser) -> None:
        self._authoriser = authoriser

    def check_configure(self, role: str, namespace: NamespaceName, name: str) -> None:
        self._authoriser.check_configure(role, _scope(namespace, name))

    def check_write(self, role: str, namespace: NamespaceName, name: str) -> None:
        self._authoriser.check(role, Action.PRODUCE, _scope(namespace, name))

    def check_read(self, role: str, namespace: NamespaceName, name: str) -> None:
        self._authoriser.check(role, Action.CONSUME, _scope(namespace, name))

    def check_declare(self, role: str, namespace: NamespaceName, exchange: Exchange) -> None:
        """Configure; with an alternate, whose messages come from here, also write there."""
        self.check_configure(role, namespace, exchange.name)
        alternate = exchange.alternate
        if isinstance(alternate, str):
            self.check_write(role, namespace, alternate)

    def check_bind(self, role: str, namespace: NamespaceName, binding: Binding) -> None:
        """For unbinding, too: write on the destination, read on the source."""
        self.check_write(role, namespace, binding.destination.name)
        self.check_read(role, namespace, binding.source)

    def check_key(self, role: str, namespace: NamespaceName, exchange: Exchange, key: str, action: Action) -> None:
        """Topic permissions, which are for topic exchanges alone."""
        if exchange.type is ExchangeType.TOPIC:
            self._authoriser.check_key(role, action, namespace, exchange.name, key)

    def check_publish(self, role: str, namespace: NamespaceName, exchange: str) -> None:
        """Write; for the default exchange nothing, since the queue is asked."""
        if exchange != DEFAULT_EXCHANGE:
            self.check_write(role, namespace, exchange)


def _scope(namespace: NamespaceName, name: str) -> Scope:
    """The topic of this name; the namespace if no topic can have it."""
    try:
        return topic_of_queue(namespace, name).base
    except InvalidNameError:
        return namespace
