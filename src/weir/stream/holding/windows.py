"""Windows of due time, and the order in which held entries come free. Plain functions and values."""

from dataclasses import dataclass

from weir.model.held import FOREVER_MS

#: An entry's place in the order of release, as one number: due moment, then its ledger's serial (the order in
#: which ledgers were begun), then its entry. A heap of plain ints is small and fast.
DuePosition = int

_ENTRY_BITS = 40
_SERIAL_BITS = 24
_MOMENT_SHIFT = _ENTRY_BITS + _SERIAL_BITS
_ENTRY_MASK = (1 << _ENTRY_BITS) - 1
_SERIAL_MASK = (1 << _SERIAL_BITS) - 1


def place_of(due_ms: int, serial: int, entry: int) -> DuePosition:
    return due_ms << _MOMENT_SHIFT | serial << _ENTRY_BITS | entry


def moment(due_ms: int) -> DuePosition:
    """Before every entry that is due then or later, after every one that is due before."""
    return due_ms << _MOMENT_SHIFT


def due_of(place: DuePosition) -> int:
    return place >> _MOMENT_SHIFT


def serial_of(place: DuePosition) -> int:
    return place >> _ENTRY_BITS & _SERIAL_MASK


def entry_of(place: DuePosition) -> int:
    return place & _ENTRY_MASK


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """Moments from `first_ms` to before `end_ms`."""

    first_ms: int
    end_ms: int

    @property
    def dated(self) -> bool:
        """Whether its moments ever come."""
        return self.end_ms < FOREVER_MS


#: What is due at no moment.
UNDATED = Window(FOREVER_MS - 1, FOREVER_MS)


def window_of(due_ms: int, now_ms: int, width_ms: int, fine: int) -> Window:
    """The window of a message that comes now and is due then. What is due already counts as due now. Windows are
    as long as `width_ms` for what is near, and the longer the further ahead they lie: at most about `fine` of
    each length are in use at a time."""
    due_ms = max(due_ms, now_ms)
    while due_ms - now_ms >= fine * width_ms:
        width_ms *= 2
    first_ms = due_ms // width_ms * width_ms
    if first_ms + width_ms >= FOREVER_MS:
        return UNDATED
    return Window(first_ms, first_ms + width_ms)
