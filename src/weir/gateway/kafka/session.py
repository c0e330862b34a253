"""One Kafka client's connection. (The skeleton that handlers are written against; K fills it.)"""

from weir.gateway.kafka.services import Services
from weir.runtime.interfaces import Clock


class Session:
    """What a handler sees of a connection."""

    services: Services
    clock: Clock
    #: Who the client is, once it has said so.
    role: str
    #: As the request at hand names it; "" if it does not.
    client_id: str
    #: `host:port` of the client.
    peer: str
    #: How clients of this listener reach this broker.
    advertised_host: str
    advertised_port: int
