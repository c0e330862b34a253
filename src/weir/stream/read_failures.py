"""Reads of one stream that fail: the error that names stream and offset, and whether trying again has lasted long
enough for users to hear of it."""

from collections import OrderedDict
from dataclasses import dataclass

from weir.model.errors import (
    ObjectMissingError,
    ObjectStoreError,
    ReadFailedError,
    ReadStuckError,
    SegmentDamagedError,
    WeirError,
)
from weir.runtime.interfaces import Clock

#: A bookie that starts again, or a stream that changes hands, is back sooner than this.
PATIENCE_S = 10.0
#: A failure tells something about now for so long after it.
_RECENT_S = 60.0
#: Places that are remembered; readers are seldom stuck at more.
_MOST = 64


@dataclass(slots=True)
class _Place:
    since: float
    last: float
    what: str = ""


class ReadFailures:
    """Where reads of a stream failed, each place from its first failure to the next success."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._places: OrderedDict[int, _Place] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._places)

    def now(self) -> list[str]:
        """What cannot be read, and why, of what somebody tried of late: for those whose protocol has no word for
        it."""
        recent = self._clock.monotonic() - _RECENT_S
        return [place.what for place in self._places.values() if place.last >= recent]

    def succeeded(self, offset: int) -> None:
        self._places.pop(offset, None)

    def failed(self, offset: int, end: int, failure: WeirError) -> ReadFailedError:
        """What to raise: ReadFailedError at first, ReadStuckError once the place has failed for `PATIENCE_S`; at
        once where an object of the lake is missing or damaged."""
        now = self._clock.monotonic()
        place = self._places.get(offset)
        if place is None or now - place.last > PATIENCE_S:  # nobody tried meanwhile: it may have been well
            place = _Place(now, now)
        place.last = now
        self._places[offset] = place
        self._places.move_to_end(offset)
        if len(self._places) > _MOST:
            self._places.popitem(last=False)
        lasted_s = now - place.since
        hint = failure.hint if isinstance(failure, ObjectStoreError) else None
        what = f"{self._name} cannot be read from offset {offset} on (it ends at {end}): {failure.what}"
        place.what = what
        if isinstance(failure, (ObjectMissingError, SegmentDamagedError)):  # trying again brings nothing by itself
            return ReadStuckError(what, hint=hint)
        if lasted_s < PATIENCE_S:
            return ReadFailedError(what, hint=hint)
        return ReadStuckError(f"{what}, for {lasted_s:.0f} s now", hint=hint)
