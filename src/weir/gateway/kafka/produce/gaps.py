"""What idempotent producers of one connection sent that was not stored, as far as only the connection can know it.

Clients have several batches under way. When one could not be stored, perhaps because its topic was moving, those
behind it must be refused until it is sent again. A topic that has stored something of the producer knows that by
itself; one that has not would take any of them for the first. So a gap counts while the topic knows nothing of the
producer: what was missing here may have been stored by another broker that led the partition meanwhile.
"""

from weir.broker.api import Topic
from weir.model.batch import Stamp
from weir.model.errors import OutOfOrderSequenceError

#: The latest that are remembered.
_MOST = 1000
#: Sequence numbers have 31 bits and begin anew after the last.
_SEQUENCES = 1 << 31

PartKey = tuple[str | bytes, int]


class Gaps:
    """Of one connection."""

    def __init__(self) -> None:
        #: The first that was not stored, for each partition and producer id.
        self._missing: dict[tuple[PartKey, int], Stamp] = {}

    def check(self, key: PartKey, stamp: Stamp | None, topic: Topic | None = None) -> None:
        """OutOfOrderSequenceError for a batch behind one that is missing; what is sent again fills the gap."""
        if not self._missing or stamp is None:
            return
        missing = self._missing.get((key, stamp.producer_id))
        if missing is None:
            return
        ahead = (stamp.sequence - missing.sequence) % _SEQUENCES
        behind = stamp.epoch == missing.epoch and 0 < ahead < _SEQUENCES // 2
        if behind and not _knows(topic, stamp):
            raise OutOfOrderSequenceError(
                f"producer {stamp.producer_id} sent number {stamp.sequence}, {missing.sequence} is missing"
            )
        del self._missing[key, stamp.producer_id]

    def note(self, key: PartKey, stamp: Stamp | None) -> None:
        """A batch was not stored, or it is not known whether it was."""
        if stamp is None or (key, stamp.producer_id) in self._missing:
            return
        if len(self._missing) >= _MOST:
            del self._missing[next(iter(self._missing))]
        self._missing[key, stamp.producer_id] = stamp


def _knows(topic: Topic | None, stamp: Stamp) -> bool:
    """Whether the topic can tell by itself what follows on the producer's last batch."""
    return topic is not None and any(
        known.producer_id == stamp.producer_id and known.epoch == stamp.epoch and known.last_sequence >= 0
        for known in topic.idempotent_producers()
    )
