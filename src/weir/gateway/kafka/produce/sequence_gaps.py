"""What idempotent producers of one connection sent that was not stored, as far as only the connection can know it.

Clients have several batches under way. When one could not be stored, perhaps because its topic was moving, those
behind it must be refused until it is sent again. A topic that has stored something of the producer knows that by
itself; one that has not would take any of them for the first. So a gap counts while the topic knows nothing of the
producer: what was missing here may have been stored by another broker that led the partition meanwhile.

Either way the client is told to send again, and not that its numbers are out of order: by that librdkafka begins a
new epoch and sends everything anew, also the batch that failed, which may turn out to be stored. Only what comes
when nothing can be under way any more is out of order.
"""

from weir.broker.api.topics import Topic
from weir.model.batch import Stamp
from weir.model.errors import OutOfOrderSequenceError, ProducerClosedError, WeirError

#: The latest that are remembered.
_MOST = 1000
#: So many batches a client of idempotence may have under way.
_UNDER_WAY = 5
#: Sequence numbers have 31 bits and begin anew after the last.
_SEQUENCES = 1 << 31

PartKey = tuple[str | bytes, int]


class _Gap:
    """The first batch that was not stored, and how many behind it were refused since."""

    __slots__ = ("missing", "refused")

    def __init__(self, missing: Stamp) -> None:
        self.missing = missing
        self.refused = 0

    def is_before(self, stamp: Stamp) -> bool:
        ahead = (stamp.sequence - self.missing.sequence) % _SEQUENCES
        return stamp.epoch == self.missing.epoch and 0 < ahead < _SEQUENCES // 2

    def refusal(self, stamp: Stamp) -> WeirError:
        self.refused += 1
        what = f"producer {stamp.producer_id} sent number {stamp.sequence}, {self.missing.sequence} is missing"
        return ProducerClosedError(what) if self.refused < _UNDER_WAY else OutOfOrderSequenceError(what)


class Gaps:
    """Of one connection."""

    def __init__(self) -> None:
        #: By partition and producer id.
        self._gaps: dict[tuple[PartKey, int], _Gap] = {}

    def check(self, key: PartKey, stamp: Stamp | None, topic: Topic | None = None) -> None:
        """ProducerClosedError, later OutOfOrderSequenceError, for a batch behind one that is missing; what is sent
        again fills the gap."""
        if not self._gaps or stamp is None:
            return
        gap = self._gaps.get((key, stamp.producer_id))
        if gap is None:
            return
        if not gap.is_before(stamp):
            del self._gaps[key, stamp.producer_id]
        elif not _knows(topic, stamp):
            raise gap.refusal(stamp)

    def explained(self, key: PartKey, stamp: Stamp | None, failure: BaseException) -> BaseException:
        """What the client is told of a batch that the topic refused: of one that is out of order because one
        before it failed, that both are to be sent again."""
        if not isinstance(failure, OutOfOrderSequenceError) or stamp is None:
            return failure
        gap = self._gaps.get((key, stamp.producer_id))
        return failure if gap is None or not gap.is_before(stamp) else gap.refusal(stamp)

    def note(self, key: PartKey, stamp: Stamp | None) -> None:
        """A batch was not stored, or it is not known whether it was."""
        if stamp is None or (key, stamp.producer_id) in self._gaps:
            return
        if len(self._gaps) >= _MOST:
            del self._gaps[next(iter(self._gaps))]
        self._gaps[key, stamp.producer_id] = _Gap(stamp)


def _knows(topic: Topic | None, stamp: Stamp) -> bool:
    """Whether the topic can tell by itself what follows on the producer's last batch."""
    return topic is not None and any(
        known.producer_id == stamp.producer_id and known.epoch == stamp.epoch and known.last_sequence >= 0
        for known in topic.idempotent_producers()
    )
