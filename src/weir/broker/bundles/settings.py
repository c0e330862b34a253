"""What can be set about ownership."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnershipSettings:
    """How long others believe in a broker that they no longer hear, and how soon and how long it tries."""

    ttl_s: float = 5.0
    retry_s: float = 0.2
    claim_attempts: int = 5
    close_timeout_s: float = 2.0
    #: Handing a bundle over: how long the successor has to get ready, and how long topics have to close.
    ready_s: float = 2.0
    put_down_s: float = 5.0
    #: How long whoever asks the successor waits for the bundle to come.
    arrival_s: float = 5.0
    #: How long a broker that goes down takes to hand over what it has.
    drain_s: float = 20.0
    #: Bundles that are handed over at the same time.
    moves_at_once: int = 8
