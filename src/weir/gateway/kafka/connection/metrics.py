"""What the Kafka gateway counts, for all of its listeners together."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class KafkaMetrics:
    connections: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    #: Requests by the key of their API.
    requests: dict[int, int] = field(default_factory=dict)
    #: Connections that were ended for what they sent.
    refused: int = 0
