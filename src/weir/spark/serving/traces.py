"""What the programs below an error said, Java's words among them."""

import traceback

from weir.spark.serving.messages import BelowError


def trace_of(wrong: BaseException) -> str:
    """What the programs below said, Java's words among them; empty if it is all said."""
    below = wrong.__cause__
    if isinstance(below, BelowError):
        return str(below)
    if below is None:
        return ""
    told = "".join(traceback.format_exception(below)).rstrip()
    # Spark's exceptions have Java's stack beside them, and do not print it.
    java = getattr(below, "_stackTrace", None)
    return f"{told}\n\nJVM stacktrace:\n{java.rstrip()}" if isinstance(java, str) and java.strip() else told
