"""The epoch of a topic's exclusive producers, in its state: a later one fences those of before."""

from weir.stream.state import StateLog
from weir.wire.snapshots.producers import decode_epoch, encode_epoch

_KEY = "epoch"


class TopicEpoch:
    """Fills `producers.KeepsEpoch`."""

    def __init__(self, state: StateLog) -> None:
        self._state = state

    def load(self) -> int | None:
        stored = self._state.get(_KEY)
        return None if stored is None else decode_epoch(stored)

    def save(self, epoch: int) -> None:
        self._state.put(_KEY, encode_epoch(epoch))

    async def persisted(self) -> None:
        await self._state.flush()
