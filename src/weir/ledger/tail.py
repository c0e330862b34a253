"""Whether an entry belongs to a ledger that is being recovered: the decision table.

For each bookie of the entry's write set, what it said about the entry:

| answer  | meaning                                                                                             |
| ------- | --------------------------------------------------------------------------------------------------- |
| HELD    | it gave the entry whole                                                                             |
| DENIED  | fenced first, it then said that it does not hold the entry: it never will acknowledge it            |
| DAMAGED | it holds the entry, and its copy is damaged: it may have acknowledged it                            |
| UNKNOWN | no answer, or denied before it was fenced: it may have acknowledged the entry, or yet may           |

| any HELD | DENIED         | verdict   | because                                                               |
| -------- | -------------- | --------- | --------------------------------------------------------------------- |
| yes      | any            | EXISTS    | it may have been acknowledged; keeping it is always right             |
| no       | >= Qw - Qa + 1 | ABSENT    | at most Qa - 1 can ever hold it, so the writer never acknowledges it  |
| no       | fewer, all     | LOST      | it may have been acknowledged, and nobody has it whole: it keeps its  |
|          | others DAMAGED |           | place in the ledger, as a gap                                         |
| no       | fewer          | UNDECIDED | an ack quorum may lie among the silent ones: ask again, never guess   |
"""

from collections.abc import Iterable
from enum import Enum

from weir.model.ledger import Quorum


class Answer(Enum):
    """What one bookie said about an entry."""

    HELD = "held"
    DENIED = "denied"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"


class Verdict(Enum):
    """What follows for the entry."""

    EXISTS = "exists"
    ABSENT = "absent"
    LOST = "lost"
    UNDECIDED = "undecided"


def decide(answers: Iterable[Answer], quorum: Quorum) -> Verdict:
    """The verdict on an entry by what the bookies of its write set said."""
    denied = unknown = 0
    for answer in answers:
        if answer is Answer.HELD:
            return Verdict.EXISTS
        denied += answer is Answer.DENIED
        unknown += answer is Answer.UNKNOWN
    if denied >= quorum.coverage:
        return Verdict.ABSENT
    return Verdict.UNDECIDED if unknown else Verdict.LOST
