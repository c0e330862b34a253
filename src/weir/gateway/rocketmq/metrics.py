"""What the RocketMQ gateway counts, for all of its listeners together."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class RocketmqMetrics:
    connections: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    #: Calls, by the name of their method.
    requests: dict[str, int] = field(default_factory=dict)
    #: Messages that were stored for the clients of this broker, and that they were sent, whichever broker has the
    #: queue: all brokers together count each once.
    sent: int = 0
    received: int = 0
    #: Calls of the clients of this broker that were made at another, which has the queue.
    handed_on: int = 0
    #: Connections that were ended for what they sent.
    refused: int = 0

    def count(self, method: str) -> None:
        self.requests[method] = self.requests.get(method, 0) + 1
