"""Virtual hosts: namespaces, as AMQP's clients name them."""

from dataclasses import dataclass

from weir.broker.api import Exchanges, NamespaceExchanges, NamespaceQueues, Queues
from weir.model.errors import InvalidNameError, NamespaceNotFoundError, TenantNotFoundError
from weir.model.topics import DEFAULT_NAMESPACE, NamespaceName

DEFAULT_VHOST = "/"


@dataclass(frozen=True, slots=True)
class VirtualHost:
    """One that a connection has opened."""

    name: str
    namespace: NamespaceName
    exchanges: NamespaceExchanges
    queues: NamespaceQueues


def namespace_of(vhost: str) -> NamespaceName:
    """`/` is public/default, `a/b` that namespace, any other name one of the tenant public. InvalidNameError."""
    if vhost == DEFAULT_VHOST:
        return DEFAULT_NAMESPACE
    return NamespaceName.parse(vhost if "/" in vhost else f"{DEFAULT_NAMESPACE.tenant}/{vhost}")


async def open_vhost(name: str, exchanges: Exchanges, queues: Queues) -> VirtualHost | None:
    """None if there is no such namespace."""
    try:
        namespace = namespace_of(name)
        return VirtualHost(name, namespace, await exchanges.open(namespace), await queues.open(namespace))
    except (InvalidNameError, NamespaceNotFoundError, TenantNotFoundError):
        return None
