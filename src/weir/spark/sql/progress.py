"""How far a running query is, in a few numbers; and the cause of its failure, in a line."""

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
#: What stands before a cause in a stack of Java's; and the classes of exceptions before what they say.
_CAUSED_BY, _CLASSES = "Caused by: ", re.compile(r"^(?:[\w.$]+(?:Exception|Error): )+")
_MOST_CAUSES = 20


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
    """What failed and its root cause, without the stacks of three programs."""
    if isinstance(failure, WeirError):
        return str(failure)
    texts = [_lines(one) for one in _chain(failure)]
    lines = [line for text in texts for line in text if _OWN_ERRORS in line]
    own = [line.partition(_OWN_ERRORS)[2].partition(": ")[2] for line in lines]
    if own and own[-1]:
        return own[-1]
    said, cause = _sentence(texts[0]) or type(failure).__name__, _root_cause(texts)
    return said if _CLASSES.sub("", cause) in said else f"{said}; caused by {cause}"


def failure_text(failure: BaseException) -> str:
    """All that a failure and its causes say."""
    return "\n".join(line for one in _chain(failure) for line in _lines(one))


def _chain(failure: BaseException) -> list[BaseException]:
    """The failure and its causes; those of exceptions of Java are in an attribute of PySpark's."""
    found, one = [failure], failure
    while len(found) < _MOST_CAUSES:
        cause = getattr(one, "_cause", None) or one.__cause__
        if not isinstance(cause, BaseException) or any(cause is known for known in found):
            break
        found.append(one := cause)
    return found


def _lines(failure: BaseException) -> list[str]:
    try:
        text = str(failure)
    except Exception:  # an exception of Java asks its JVM, which may have ended
        text = type(failure).__name__
    return [line.strip() for line in text.splitlines() if line.strip()]


def _root_cause(texts: Sequence[list[str]]) -> str:
    """The innermost cause in a line; empty if none is named."""
    for lines in reversed(texts):
        behind = [at for at, line in enumerate(lines) if line.startswith(_CAUSED_BY)]
        if behind:
            return _sentence([lines[behind[-1]].removeprefix(_CAUSED_BY), *lines[behind[-1] + 1 :]])
    return _sentence(texts[-1]) if len(texts) > 1 else ""


def _sentence(lines: Sequence[str]) -> str:
    """What the first line says, without what is for programs; of a stack of Python's, the exception."""
    first = lines[0] if lines else ""
    if first.startswith(_CALLED) and len(lines) > 1:
        first = lines[1].lstrip(": ")
    if first.endswith(_TRACE):
        died_of = [line for line in lines[1:] if _RAISED.match(line)]
        first = first.removesuffix(_TRACE) + (died_of[-1] if died_of else "")
    # Spark's error classes stand in brackets before what it says, and codes for programs behind it.
    said = first.partition("] ")[2] or first if first.startswith("[") else first
    return _CODES.sub(lambda found: f" (line {found[1]}, column {int(found[2]) + 1})" if found[1] else "", said)
