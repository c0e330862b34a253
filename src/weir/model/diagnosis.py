"""What a check of this machine found, and what to do about it."""

from enum import Enum

from weir.model.value import value


class State(Enum):
    GOOD = "ok"
    #: Something optional is missing, or may become a problem.
    WARNING = "warning"
    FAILED = "failed"


@value
class Check:
    """`hint` says what to do; empty if nothing has to be done."""

    name: str
    state: State
    found: str
    hint: str = ""
