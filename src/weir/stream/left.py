"""What the holder of a stream leaves to the next one: all that this would have to read, and to close, to take it
over.

It counts while the chain in the metadata has the version that it is told with. Whoever takes a stream changes the
chain first, so nobody has appended anything since; and who left it has ended its own appends.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from weir.model.ids import LedgerId
from weir.model.stream import Chain


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """How far an open ledger was written, all of it acknowledged."""

    end_offset: int
    size_bytes: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Left:
    #: As it is in the metadata, with its version there.
    chain: Chain
    version: int
    #: Of the chain's open ledger; None if it has none.
    ledger: LedgerEnd | None
    state: Mapping[str, bytes]
    #: Whether some of the state is not written.
    unsaved: bool = False

    @property
    def last_ms(self) -> int:
        """When the last batch was appended; 0 if none ever was."""
        if self.ledger is not None:
            return self.ledger.last_ms
        return self.chain.spans[-1].last_ms if self.chain.spans else 0

    def taken(self, leader: int, opened: LedgerId | None, now_ms: int) -> Chain:
        """The chain of the next holder, in this leader epoch; `opened`: with a ledger of its own."""
        chain = self.chain
        if self.ledger is not None:
            chain = chain.with_closed(self.ledger.end_offset, self.ledger.size_bytes, self.ledger.last_ms)
        chain = replace(chain, epoch=chain.epoch + 1, leader=max(leader, chain.leader))
        return chain if opened is None else chain.with_opened(opened, now_ms)
