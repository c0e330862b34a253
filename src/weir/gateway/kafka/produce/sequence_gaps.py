"""Sequence gaps of idempotent producers that only the connection can know.

Clients have several batches in flight. If one of them is not stored, for example during a handover of its topic,
the broker must refuse the later ones until the client resends it. A topic that has stored a batch of the producer
detects the gap itself; a topic without one would accept any batch as the first. So a gap counts only while the
topic has no state of the producer: another broker that led the partition meanwhile may have stored the missing
batch.

In both cases the refusal is retriable, not OUT_OF_ORDER_SEQUENCE_NUMBER: with that code librdkafka bumps its epoch
and resends everything, including the failed batch, which may have been stored after all. A batch is out of order
only if it arrives when no earlier batch can be in flight any more.
"""

from weir.broker.api.topics import Topic
from weir.model.batch import Stamp
from weir.model.errors import OutOfOrderSequenceError, ProducerClosedError, WeirError

#: The latest gaps that a connection remembers.
_MOST = 1000
#: Batches that an idempotent client may have in flight.
_UNDER_WAY = 5
#: Sequence numbers have 31 bits and wrap around.
_SEQUENCES = 1 << 31

PartKey = tuple[str | bytes, int]


class _Gap:
    """The first batch that was not stored, and the number of later batches refused since."""

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
    """The sequence gaps of one connection."""

    def __init__(self) -> None:
        #: By partition and producer id.
        self._gaps: dict[tuple[PartKey, int], _Gap] = {}

    def check(self, key: PartKey, stamp: Stamp | None, topic: Topic | None = None) -> None:
        """Raise ProducerClosedError, later OutOfOrderSequenceError, for a batch after a missing one. The missing
        batch itself closes the gap."""
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
        """The error for a batch that the topic refused. If the batch is out of order because an earlier one
        failed, the error makes the client resend both."""
        if not isinstance(failure, OutOfOrderSequenceError) or stamp is None:
            return failure
        gap = self._gaps.get((key, stamp.producer_id))
        return failure if gap is None or not gap.is_before(stamp) else gap.refusal(stamp)

    def note(self, key: PartKey, stamp: Stamp | None) -> None:
        """Record a batch that was not stored, or whose outcome is unknown."""
        if stamp is None or (key, stamp.producer_id) in self._gaps:
            return
        if len(self._gaps) >= _MOST:
            del self._gaps[next(iter(self._gaps))]
        self._gaps[key, stamp.producer_id] = _Gap(stamp)


def _knows(topic: Topic | None, stamp: Stamp) -> bool:
    """Whether the topic knows the producer's last sequence number."""
    return topic is not None and any(
        known.producer_id == stamp.producer_id and known.epoch == stamp.epoch and known.last_sequence >= 0
        for known in topic.idempotent_producers()
    )
