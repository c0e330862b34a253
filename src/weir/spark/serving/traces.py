"""What the programs below an error said, Java's words among them."""

import traceback

from weir.spark.serving.messages import BelowError


def trace_of(wrong: BaseException) -> str:
    """What the programs below said, Java's words among them; empty if it is all said."""
    below = wrong.__cause__
    if isinstance(below, BelowError):
        return str(below)
    return "" if below is None else "".join(traceback.format_exception(below)).rstrip()
