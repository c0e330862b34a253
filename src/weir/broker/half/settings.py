"""What can be set about half messages."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HalfSettings:
    """One value for all topics of a broker."""

    #: Nobody is asked about a half message for so long, unless it says otherwise itself.
    recovery_s: float = 6.0
    #: Then a producer of its group is asked so often,
    interval_s: float = 30.0
    #: and so many times; after one more interval it is rolled back.
    checks: int = 15
    #: Half messages of a topic that are not decided, at most (about 300 bytes of memory each).
    most: int = 100_000
    #: How a half message was decided is remembered for so long after the last one of its ledger was.
    remember_s: float = 24 * 3600.0
    #: Look at the clock at least this often, since it may jump.
    tick_s: float = 1.0
