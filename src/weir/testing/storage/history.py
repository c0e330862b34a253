"""What the storage's clients asked and were told: operations (see `operations`) on ledgers and their entries.

Payloads identify themselves (client and counter), so that whatever a reader is handed says who appended it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from weir.model.ids import Buffer, EntryId, LedgerId
from weir.testing.operations import Operation, Recorder

_NO_LEDGER = LedgerId(-1)


class LedgerOpKind(Enum):
    """What was asked."""

    CREATE = "create"
    APPEND = "append"
    READ = "read"
    #: A reader was told the last-add-confirmed.
    CONFIRMED = "confirmed"
    #: Opened with recovery: fenced, and the end decided.
    RECOVER = "recover"
    #: Closed by its own writer.
    CLOSE = "close"
    DELETE = "delete"
    #: Counted, after healing, how many bookies hold an entry whole; OK if that is as many as promised.
    COPIES = "copies"
    #: An entry on a disk was damaged for good, and there need not be another copy of it.
    ROTTED = "rotted"
    #: Left out by the final reader, since no whole copy is anywhere; OK if the metadata name it.
    LEFT_OUT = "left-out"


@dataclass(frozen=True, slots=True)
class Op(Operation):
    """One operation of one client, on one ledger."""

    ledger: LedgerId = _NO_LEDGER
    #: APPEND: the entry id it was given. READ: the entry asked for.
    entry: EntryId | None = None
    #: APPEND: what was appended. READ: what was found there.
    payload: str | None = None
    #: CONFIRMED: the last-add-confirmed. RECOVER, CLOSE: where the ledger ends.
    end: EntryId | None = None

    @property
    def facts(self) -> str:
        where = f"ledger {self.ledger}" + ("" if self.entry is None else f" entry {self.entry}")
        found = "" if self.payload is None else f" payload {self.payload}"
        return where + found + ("" if self.end is None else f" end {self.end}")


class History(Recorder[Op]):
    """Of ledgers."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(Op, now)


_FILL = bytes(range(97, 123))


def make_payload(client: str, number: int, size: int) -> bytes:
    """At least `size` bytes that no other append carries and that say where they came from."""
    head = f"{client}#{number}|{size}|".encode()
    missing = max(0, size - len(head))
    turn = (number * 7) % len(_FILL)
    fill = _FILL[turn:] + _FILL[:turn]
    return head + (fill * (missing // len(fill) + 1))[:missing]


def payload_id(data: Buffer) -> str:
    """Who appended these bytes; for bytes that nobody appended, a name that matches no append."""
    data = bytes(data)
    head, _, _ = data.partition(b"|")
    try:
        client, _, number = head.decode().partition("#")
        size = int(data.split(b"|", 2)[1])
        if make_payload(client, int(number), size) == data:
            return head.decode()
    except (ValueError, IndexError, UnicodeDecodeError):
        pass
    return f"damaged:{data[:24]!r}"
