"""What idempotent producers sent that is not in the log: it is held, or cancelled something. It is known again.

A held batch carries its stamp, as those in the log do. The state remembers, with whatever it writes next, the last
sequence number of each producer that was taken so, and up to where the holding area is taken into account; opening
the topic reads the area from there on.
"""

from collections import OrderedDict
from contextlib import aclosing

from weir.broker.ports import Holding
from weir.broker.publish.producer_state import ProducerStates
from weir.model.batch import HeldId, Stamp
from weir.stream.state import StateLog
from weir.wire.snapshots.producers import HeldStampsRecord, decode_held_stamps, encode_held_stamps

KEY = "producers/held"
#: Producers that are remembered: the latest to have something held.
_MOST = 10_000
_LAST_SEQUENCE = 0x7FFFFFFF


class HeldStamps:
    """Of one topic."""

    def __init__(self, state: StateLog, states: ProducerStates) -> None:
        self._state = state
        self._states = states
        #: Epoch and last sequence number of each producer.
        self._last: OrderedDict[int, tuple[int, int]] = OrderedDict()
        #: Entries of each holding ledger that are taken into account.
        self._known: dict[int, int] = {}

    def landed(self, place: HeldId) -> None:
        """A batch is in the holding area. What comes of a stamped one is told right before."""
        self._known[place.ledger] = max(self._known.get(place.ledger, 0), place.entry + 1)

    def taken(self, stamp: Stamp, count: int) -> None:
        """Its sequence numbers are used up; durable with the state's next flush."""
        self._last[stamp.producer_id] = stamp.epoch, (stamp.sequence + count - 1) & _LAST_SEQUENCE
        self._last.move_to_end(stamp.producer_id)
        if len(self._last) > _MOST:
            self._last.popitem(last=False)
        self._state.mark(KEY, self._to_bytes)

    async def open(self, holding: Holding | None, now_ms: int) -> None:
        """Tell the producers' states what the log does not. They know the log already."""
        data = self._state.get(KEY)
        if data is not None:
            self._load(data)
        for producer_id, (epoch, last) in self._last.items():
            self._states.catch_up(Stamp(producer_id, epoch, last), 1, now_ms)
        await self.catch_up(holding, now_ms)

    async def catch_up(self, holding: Holding | None, now_ms: int) -> None:
        """The same for what was held since."""
        if holding is None:
            return
        found: list[tuple[int, int, int, int]] = []
        positions = holding.positions()
        async with aclosing(holding.held_since(self._known)) as all_held:
            async for _, batch in all_held:
                stamp = batch.stamp
                if stamp is not None:
                    found.append((stamp.producer_id, stamp.epoch, stamp.sequence, batch.count))
        for producer_id, epoch, sequence, count in sorted(found):
            stamp = Stamp(producer_id, epoch, sequence)
            if self._states.catch_up(stamp, count, now_ms):
                self.taken(stamp, count)
        self._known = positions
        self.save()

    def save(self) -> None:
        """Have the state say up to where the holding area is taken into account."""
        if self._known:
            self._state.mark(KEY, self._to_bytes)

    def _to_bytes(self) -> bytes:
        return encode_held_stamps(HeldStampsRecord(self._last, self._known))

    def _load(self, data: bytes) -> None:
        record = decode_held_stamps(data)
        self._last, self._known = OrderedDict(record.last), dict(record.known)
