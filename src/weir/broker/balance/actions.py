"""What a round of balance asks for."""

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """Why a bundle is moved."""

    DRAIN = "drain"
    ISOLATION = "isolation"
    HOT = "hot"
    COLD = "cold"
    MEMORY = "memory"
    #: To serve about as many topics as others.
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Move:
    """`source` is asked to hand the bundle over. `usage`: about what share of a broker it is."""

    bundle: str
    source: str
    target: str
    reason: Reason = Reason.HOT
    usage: float = 0.0


@dataclass(frozen=True, slots=True)
class Split:
    """`broker` is asked to make two of the bundle, where its topics' load is halved."""

    bundle: str
    broker: str


Action = Move | Split
