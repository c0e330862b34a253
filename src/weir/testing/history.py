"""What clients asked and were told, as values: the only thing that the checkers read.

An operation has a beginning and, unless its client died first, an end. Both are steps of one counter, so that
"before" is never in doubt, and carry the virtual time for people. Payloads identify themselves (client and
counter), so that whatever a reader is handed says who appended it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from weir.model.ids import Buffer, EntryId, LedgerId

#: The client that reads everything back after all faults are healed: what it asks must succeed.
FINAL = "final"


class Kind(Enum):
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


class Outcome(Enum):
    """What came back. FAILED says that an error was answered, not that nothing happened."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of one client, from its beginning to what came of it."""

    client: str
    kind: Kind
    ledger: LedgerId
    began: int
    began_at: float
    ended: int | None = None
    ended_at: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    #: APPEND: the entry id it was given. READ: the entry asked for.
    entry: EntryId | None = None
    #: APPEND: what was appended. READ: what was found there.
    payload: str | None = None
    #: CONFIRMED: the last-add-confirmed. RECOVER, CLOSE: where the ledger ends.
    end: EntryId | None = None
    #: The error, when it FAILED.
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def final(self) -> bool:
        """Asked after all faults were healed and all nodes restarted."""
        return self.client == FINAL

    def __str__(self) -> str:
        span = f"{self.began_at:9.3f}s .. " + ("never    " if self.ended_at is None else f"{self.ended_at:8.3f}s")
        where = f"ledger {self.ledger}" + ("" if self.entry is None else f" entry {self.entry}")
        found = "" if self.payload is None else f" payload {self.payload}"
        end = "" if self.end is None else f" end {self.end}"
        error = f": {self.error}" if self.error else ""
        return f"{span}  {self.client:<10} {self.kind.value:<9} {where}{found}{end} -> {self.outcome.value}{error}"


class Pending:
    """An operation under way. Ending it twice is an error of the harness; never ending it means UNKNOWN."""

    __slots__ = ("_began", "_history")

    def __init__(self, history: "History", began: Op) -> None:
        self._history = history
        self._began = began

    def ok(self, *, entry: EntryId | None = None, payload: str | None = None, end: EntryId | None = None) -> None:
        """The client was told that it worked."""
        self._history.finish(self._began, Outcome.OK, entry=entry, payload=payload, end=end)

    def failed(self, error: BaseException) -> None:
        """The client was told an error."""
        self._history.finish(self._began, Outcome.FAILED, error=f"{type(error).__name__}: {error}")


class History:
    """Records operations as they begin and end; `now` tells the virtual time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._step = 0
        #: By the step they began with, which orders them too.
        self._ops: dict[int, Op] = {}

    def begin(
        self,
        client: str,
        kind: Kind,
        ledger: LedgerId,
        *,
        entry: EntryId | None = None,
        payload: str | None = None,
    ) -> Pending:
        """A client asks."""
        self._step += 1
        op = Op(client, kind, ledger, self._step, self._now(), entry=entry, payload=payload)
        self._ops[op.began] = op
        return Pending(self, op)

    def finish(
        self,
        began: Op,
        outcome: Outcome,
        *,
        entry: EntryId | None = None,
        payload: str | None = None,
        end: EntryId | None = None,
        error: str = "",
    ) -> None:
        """A client is answered."""
        if self._ops[began.began].ended is not None:
            raise ValueError(f"ended twice: {began}")
        self._step += 1
        self._ops[began.began] = Op(
            client=began.client,
            kind=began.kind,
            ledger=began.ledger,
            began=began.began,
            began_at=began.began_at,
            ended=self._step,
            ended_at=self._now(),
            outcome=outcome,
            entry=began.entry if entry is None else entry,
            payload=began.payload if payload is None else payload,
            end=end,
            error=error,
        )

    def ops(self) -> tuple[Op, ...]:
        """Every operation so far, in the order in which they began."""
        return tuple(self._ops.values())


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
