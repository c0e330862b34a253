"""What was acknowledged and is gone, as told to an operator who has to decide whether to go on without it."""

from typing import NamedTuple


class Loss(NamedTuple):
    """One place where acknowledged bytes are missing."""

    #: The file, or the store, that lacks them.
    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


#: What a record of lost entries begins with that `weir salvage` made: nothing will bring them back.
SALVAGED = "lost before `weir salvage`: "
