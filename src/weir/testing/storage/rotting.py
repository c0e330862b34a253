"""Which entries lie where in a bookie's entry logs, so that whoever damages a disk knows what it hits."""

from typing import NamedTuple

from weir.model.errors import WireError
from weir.model.ids import EntryId, LedgerId
from weir.wire.entry import HEADER_BYTES, entry_key, entry_size, verify_entry


def is_log(path: str) -> bool:
    """Whether a file holds entries, and not the index of such a file."""
    return path.endswith(".log")


class Span(NamedTuple):
    """The bytes [begin, end) of a log hold this entry."""

    begin: int
    end: int
    ledger_id: LedgerId
    entry_id: EntryId


class LogSpans:
    """Of all logs that were ever looked at: an entry that was damaged since is known from before."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Span] = {}

    def of(self, path: str, data: bytes) -> list[Span]:
        """The entries of a log, up to the first place at which none is known."""
        found: list[Span] = []
        at = 0
        while at + HEADER_BYTES <= len(data):
            span = _whole(data, at) or self._known.get((path, at))
            if span is None:
                break
            self._known[path, at] = span
            found.append(span)
            at = span.end
        return found


def _whole(data: bytes, at: int) -> Span | None:
    try:
        end = at + entry_size(data, at)
        verify_entry(data[at:end])
    except WireError:
        return None
    return Span(at, end, *entry_key(data, at))
