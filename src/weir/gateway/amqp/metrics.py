"""What the AMQP gateway counts, for all of its listeners together."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class AmqpMetrics:
    connections: int = 0
    channels: int = 0
    consumers: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    #: Methods of clients, by their name.
    requests: dict[str, int] = field(default_factory=dict)
    #: Messages that clients published, and that they were sent.
    published: int = 0
    delivered: int = 0
    #: Mandatory messages that no queue wanted.
    returned: int = 0
    #: Messages that were to be confirmed and were not stored.
    nacked: int = 0
    #: Connections that were told to wait with what they publish.
    blocked: int = 0
    #: Connections that were ended for what they sent.
    refused: int = 0
    #: Consumers, and the like, that were refused since their connection had as many as it may have.
    over_limit: int = 0

    def count(self, method: str, count: int = 1) -> None:
        self.requests[method] = self.requests.get(method, 0) + count
