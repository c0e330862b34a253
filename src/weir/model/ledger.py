"""What the metadata says of a ledger: its quorums, its ensembles and where it ends.

What a bookie answers to a read.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from weir.model.check import check
from weir.model.ids import NO_ENTRY, BookieId, Buffer, EntryId, LedgerId


class LedgerState(Enum):
    """OPEN: one writer appends. IN_RECOVERY: someone is finding the end. CLOSED: the end is known for good."""

    OPEN = "open"
    IN_RECOVERY = "in-recovery"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Quorum:
    """How many bookies a ledger is spread over (E), each entry is written to (Qw), and must confirm it (Qa)."""

    ensemble: int = 1
    write: int = 1
    ack: int = 1

    def __post_init__(self) -> None:
        check(
            1 <= self.ack <= self.write <= self.ensemble,
            f"quorum needs 1 <= ack <= write <= ensemble, got {self}",
        )

    @property
    def coverage(self) -> int:
        """How many of an entry's write set must deny it before it is certain that it was never acknowledged."""
        return self.write - self.ack + 1


@dataclass(frozen=True, slots=True)
class Fragment:
    """From `first_entry` on, until the next fragment, entries live on these bookies."""

    first_entry: EntryId
    bookies: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """One ledger's record in the metadata store; changed only by compare-and-set."""

    ledger_id: LedgerId
    quorum: Quorum
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    #: Where the ledger ends and how many payload bytes it holds; known only when CLOSED.
    last_entry: EntryId = NO_ENTRY
    length: int = 0
    created_ms: int = 0

    def fragment_at(self, entry_id: EntryId) -> Fragment:
        """The fragment that holds the entry."""
        for fragment in reversed(self.fragments):
            if fragment.first_entry <= entry_id:
                return fragment
        return self.fragments[0]

    def write_set(self, entry_id: EntryId) -> tuple[BookieId, ...]:
        """The Qw bookies that the entry is written to: striped round-robin over the ensemble."""
        bookies = self.fragment_at(entry_id).bookies
        first = entry_id % len(bookies)
        return tuple(bookies[(first + i) % len(bookies)] for i in range(self.quorum.write))

    def bookies(self) -> tuple[BookieId, ...]:
        """Every bookie that any fragment names, in a stable order."""
        return tuple(dict.fromkeys(b for fragment in self.fragments for b in fragment.bookies))

    def with_fragment(self, fragment: Fragment) -> "LedgerMetadata":
        """The same ledger with a new last fragment; one that starts at the same entry is replaced."""
        kept = tuple(f for f in self.fragments if f.first_entry < fragment.first_entry)
        return replace(self, fragments=(*kept, fragment))


class ReadResult(NamedTuple):
    """Entries as stored (header and payload), in order, and the highest last-add-confirmed the bookie knows."""

    entries: list[tuple[EntryId, Buffer]]
    last_confirmed: EntryId
