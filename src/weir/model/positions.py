"""Positions of consumer groups."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A position: the offset of the next message to process, and what the group wants kept with it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    #: When it was committed, in milliseconds since 1970; 0 if it was placed by other means.
    commit_ms: int = 0
