"""What an export failed of, in one line."""

import re

from weir.model.errors import WeirError

#: What a task of Spark's died of, in the words of its Python: `OSError: the disk is full`.
_CAUSE = re.compile(r"[\w.]*(Error|Exception): \S")


def in_a_line(failure: Exception) -> str:
    """Spark's have the stacks of both sides in them."""
    if isinstance(failure, WeirError):
        return str(failure)
    told = [line.strip() for line in str(failure).splitlines() if line.strip()]
    causes = [line for line in told if _CAUSE.match(line)]
    return next(reversed(causes), told[0] if told else type(failure).__name__)
