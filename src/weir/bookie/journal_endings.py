"""Decision table for the endings of journal files.

Replay examines one file at a time by three facts: the file's position relative to the checkpoint, the ending of
its run of valid records, and whether there is proof that synced bytes followed. Proof is one of:

- a later record of the same file with `durable through` beyond the end; - the first record of the next file, which
names the end of this one; - the checkpoint, which names a position; - the end record beside the journal, which
follows every sync (`weir.runtime.loss_records`); - the size of the file before its first record, if the next
record would begin or end beyond the remaining size; - for a missing file, any later file.

A cut loses nothing acknowledged: the journal had synced every acknowledged record, so if replay cannot read one,
either it finds a proof and the bookie refuses to start, or the record was written in the last moment, before the
end record named it (docs/adr/0022-short-files.md gives the length of that moment).
"""

from enum import Enum


class CheckpointSide(Enum):
    """The position of the file relative to the checkpoint."""

    BEFORE_CHECKPOINT = "before"
    FROM_CHECKPOINT = "from"


class Ending(Enum):
    """The bytes after the last valid record, after a few reads."""

    REACHED = "the end that the next file names"
    ZEROS = "zeros, or the end of the file"
    STALE = "a record of the file's former life"
    BAD = "bytes that are no valid record"
    MISSING = "no such file"


class Proof(Enum):
    """Whether synced bytes must follow the end."""

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
        """Whether acknowledged bytes are lost, so that the bookie must not start."""
        return self in (Case.CUT_SHORT, Case.BAD_MIDDLE, Case.MISSING_FILE)


_OLD = {
    (CheckpointSide.BEFORE_CHECKPOINT, ending, proof): Case.OLD_FILE
    for ending in Ending
    for proof in Proof
    if (ending, proof) != (Ending.REACHED, Proof.BEYOND)
}

#: Every possible combination. A file that ends where the next file says so has, by definition, nothing beyond;
#: that combination has no row.
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
    """The verdict on a file with valid records up to `end` and synced bytes up to `proven`."""
    return TABLE[place, ending, Proof.BEYOND if proven > end else Proof.NONE]
