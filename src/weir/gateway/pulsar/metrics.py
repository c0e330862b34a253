"""What the Pulsar gateway counts, for all of its listeners together."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class PulsarMetrics:
    connections: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    #: Commands of clients, by their number; a send is one, whatever batch it carries.
    requests: dict[int, int] = field(default_factory=dict)
    #: Connections that were ended for what they sent.
    refused: int = 0
    #: Consumers, and the like, that were refused since their connection had as many as it may have.
    over_limit: int = 0
