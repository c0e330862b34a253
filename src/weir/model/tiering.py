"""What holds for a topic whose ledgers go to the lake."""

from dataclasses import dataclass

from weir.model.policies import Retention
from weir.model.stream import SegmentStore

#: The subscription whose position says what the lake's table has.
LAKE_SUBSCRIPTION = "lake"


@dataclass(frozen=True, slots=True)
class TieringRules:
    """`weir lake on --tiered-after`, for one topic."""

    #: A ledger goes to the lake when its last message is so old.
    after_ms: int
    #: Where copies of its ledgers lie. None: no more ledgers go, since the namespace selects no catalog that it
    #: may; what was kept stays kept.
    folder: SegmentStore | None
    #: What somebody has said for the topic, its namespace or the lake; without end if nobody has.
    retention: Retention
