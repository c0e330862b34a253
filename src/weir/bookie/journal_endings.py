"""What each way in which a journal file can end means, as a table.

Replay looks at one file at a time and needs three facts: where the file stands to the checkpoint, how its run
of valid records ends, and whether anything proves that synced bytes followed. Proof is one of: a later record
of the same file that says `durable through` beyond the end; the first record of the next file, which names the
end of this one; the checkpoint, which names a position; the end record beside the journal, which follows
every sync (`weir.runtime.loss_records`); the size that a file was given before its first record, if the next
record would
begin or end beyond what is left of it; for a file that is missing, any later file at all.

Nothing that was acknowledged is lost by a cut: an acknowledged record was synced, so if it cannot be read now,
either some proof is found and the bookie refuses to start, or it was written in the last moment, before the end
record came to name it (docs/adr/0022-short-files.md says how long that is).
"""

from enum import Enum


class CheckpointSide(Enum):
    """Where the file stands to the checkpoint."""

    BEFORE_CHECKPOINT = "before"
    FROM_CHECKPOINT = "from"


class Ending(Enum):
    """What was found behind the last valid record, after reading it again a few times."""

    REACHED = "the end that the next file names"
    ZEROS = "zeros, or the end of the file"
    STALE = "a record of the file's former life"
    BAD = "bytes that are no valid record"
    MISSING = "no such file"


class Proof(Enum):
    """Whether synced bytes must follow the end that was found."""

    NONE = "none"
    BEYOND = "beyond"


class Case(Enum):
    """The verdict on one file."""

    OLD_FILE = "old file: everything in it is in entry logs; ignored, and recycled"
    COMPLETE = "complete: every record up to the end that the next file names"
    CLEAN_END = "clean end: the journal stops here"
    TORN_TAIL = "torn tail: a write that was never acknowledged is cut off"
    NOT_WRITTEN = "not written: the journal stops before this file"
    CUT_SHORT = "cut short: synced bytes are gone from its end"
    BAD_MIDDLE = "bad record in the middle: synced bytes are gone"
    MISSING_FILE = "missing file: synced bytes are gone"

    @property
    def is_fatal(self) -> bool:
        """Whether acknowledged bytes are lost, so that the bookie may not start."""
        return self in (Case.CUT_SHORT, Case.BAD_MIDDLE, Case.MISSING_FILE)


_OLD = {
    (CheckpointSide.BEFORE_CHECKPOINT, ending, proof): Case.OLD_FILE
    for ending in Ending
    for proof in Proof
    if (ending, proof) != (Ending.REACHED, Proof.BEYOND)
}

#: Every combination that can be observed. What ends where the next file says so has, by the meaning of the
#: words, nothing beyond; that combination has no row.
TABLE: dict[tuple[CheckpointSide, Ending, Proof], Case] = {
    **_OLD,
    (CheckpointSide.FROM_CHECKPOINT, Ending.REACHED, Proof.NONE): Case.COMPLETE,
    (CheckpointSide.FROM_CHECKPOINT, Ending.ZEROS, Proof.NONE): Case.CLEAN_END,
    (CheckpointSide.FROM_CHECKPOINT, Ending.STALE, Proof.NONE): Case.CLEAN_END,
    (CheckpointSide.FROM_CHECKPOINT, Ending.BAD, Proof.NONE): Case.TORN_TAIL,
    (CheckpointSide.FROM_CHECKPOINT, Ending.MISSING, Proof.NONE): Case.NOT_WRITTEN,
    (CheckpointSide.FROM_CHECKPOINT, Ending.ZEROS, Proof.BEYOND): Case.CUT_SHORT,
    (CheckpointSide.FROM_CHECKPOINT, Ending.STALE, Proof.BEYOND): Case.BAD_MIDDLE,
    (CheckpointSide.FROM_CHECKPOINT, Ending.BAD, Proof.BEYOND): Case.BAD_MIDDLE,
    (CheckpointSide.FROM_CHECKPOINT, Ending.MISSING, Proof.BEYOND): Case.MISSING_FILE,
}


def decide(place: CheckpointSide, ending: Ending, *, end: int, proven: int) -> Case:
    """The verdict on a file whose valid records end at `end`, while bytes up to `proven` had been synced."""
    return TABLE[place, ending, Proof.BEYOND if proven > end else Proof.NONE]
