"""How far a running query is, in a few numbers; and what a failed one died of, in a line."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from weir.model.errors import WeirError
from weir.model.sql_streams import StreamProgress

_OWN_ERRORS = "weir.model.errors."
_CODES = re.compile(r"\.? SQLSTATE: \w+(?:;? ?\(?line (\d+),? pos (\d+)\)?)?;?$")
#: What stands before an error of Java's that Spark has no words for.
_CALLED = "An error occurred while calling "
#: How Python's stacks begin, and how they end.
_TRACE, _RAISED = "Traceback (most recent call last):", re.compile(r"[\w.]*(Error|Exception|Interrupt)\b")


class HasProgress(Protocol):
    """A query of Spark's, as far as it is looked at here."""

    @property
    def recentProgress(self) -> Sequence[Any]: ...


@dataclass(slots=True)
class Meter:
    """What a stream has read since it was first started here."""

    rows: int = 0
    batch: int = -1
    #: When it was last looked at, and how many rows there were then.
    looked_s: float = 0.0
    looked_rows: int = 0

    def again(self, batch: int) -> "Meter":
        """For the same stream in a new query, whose last batch was this."""
        return Meter(rows=self.rows, batch=batch, looked_rows=self.rows)

    def look(self, query: HasProgress, stream_id: str, now_s: float, lag: int = 0) -> StreamProgress:
        told = [json.loads(one.json) for one in query.recentProgress]
        for one in told:
            # An idle query tells of the batch that is to come, too.
            if one["batchId"] > self.batch and "addBatch" in one.get("durationMs", {}):
                self.batch = one["batchId"]
                self.rows += one["numInputRows"]
        elapsed = now_s - self.looked_s
        rate = (self.rows - self.looked_rows) / elapsed if self.looked_s and elapsed > 0 else 0.0
        self.looked_s, self.looked_rows = now_s, self.rows
        last = told[-1] if told else {}
        operators = last.get("stateOperators", ())
        return StreamProgress(
            stream_id,
            "running",
            rows_per_second=round(max(rate, 0.0), 1),
            rows=self.rows,
            lag=lag,
            state_rows=_total(operators, "numRowsTotal"),
            state_bytes=_total(operators, "memoryUsedBytes"),
            batch=self.batch,
            batch_ms=int(last.get("durationMs", {}).get("triggerExecution", 0)),
        )


def _total(operators: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(max(0, int(one.get(name, 0))) for one in operators)


def told(failure: BaseException) -> str:
    """What happened, without the stacks of three programs."""
    if isinstance(failure, WeirError):
        return str(failure)
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    own = [line.partition(_OWN_ERRORS)[2].partition(": ")[2] for line in lines if _OWN_ERRORS in line]
    if own and own[-1]:
        return own[-1]
    first = lines[0] if lines else type(failure).__name__
    if first.startswith(_CALLED) and len(lines) > 1:
        first = lines[1].lstrip(": ")
    if first.endswith(_TRACE):
        died_of = [line for line in lines[1:] if _RAISED.match(line)]
        first = first.removesuffix(_TRACE) + (died_of[-1] if died_of else "")
    # Spark's error classes stand in brackets before what it says, and codes for programs behind it.
    said = first.partition("] ")[2] or first if first.startswith("[") else first
    return _CODES.sub(lambda found: f" (line {found[1]}, column {int(found[2]) + 1})" if found[1] else "", said)
