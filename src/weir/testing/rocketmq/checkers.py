"""What RocketMQ's clients are promised, as pure functions from a history to where a promise was broken.

A send that failed or was never answered may be there or not. An acknowledgement that was confirmed may be lost
with the broker until it is durable; what comes again then is allowed.
"""

from collections.abc import Sequence

from weir.testing.checking import AVAILABLE, Checker, Violation
from weir.testing.operations import of
from weir.testing.rocketmq.history import RocketmqOp
from weir.testing.rocketmq.history import RocketmqOpKind as Kind


def all_is_available(ops: Sequence[RocketmqOp]) -> list[Violation]:
    """With everything healed, the topic can be emptied."""
    return [Violation(AVAILABLE, f"the topic is not: {op.error}", (op,)) for op in of(ops, Kind.MISSING)]


def nothing_is_lost(ops: Sequence[RocketmqOp]) -> list[Violation]:
    """What was confirmed, sent or committed, was acknowledged by somebody or was there in the end."""
    promise = "what was confirmed is never lost"
    seen = {op.number for op in of(ops, Kind.CONTENT, Kind.ACK)}
    drained = of(ops, Kind.DRAINED)
    return [
        Violation(promise, f"{op.number} is not there", (op, *drained))
        for op in of(ops, Kind.SEND, Kind.COMMIT)
        if op.ok and drained and op.number not in seen
    ]


def acknowledged_comes_no_more(ops: Sequence[RocketmqOp]) -> list[Violation]:
    """Once the acknowledgement is durable."""
    promise = "what was acknowledged for good comes no more"
    return [Violation(promise, f"{op.number} came again", (op,)) for op in of(ops, Kind.AGAIN)]


def halves_are_seen_when_committed(ops: Sequence[RocketmqOp]) -> list[Violation]:
    """Not before somebody asked for it, and never after a roll-back was confirmed."""
    promise = "a half message is seen when it is committed"
    prepared = {op.number for op in of(ops, Kind.PREPARE)}
    asked: dict[int, int] = {}
    for op in of(ops, Kind.COMMIT):
        asked[op.number] = min(op.began, asked.get(op.number, op.began))
    rolled_back = {op.number: op for op in of(ops, Kind.ROLL_BACK) if op.ok}
    found = []
    for op in of(ops, Kind.DELIVER, Kind.CONTENT):
        if op.number in prepared and asked.get(op.number, op.began + 1) > op.began:
            found.append(Violation(promise, f"{op.number} was seen before it was committed", (op,)))
        if op.number in rolled_back:
            found.append(Violation(promise, f"{op.number} was rolled back", (rolled_back[op.number], op)))
    return found


CHECKERS: tuple[Checker, ...] = (
    all_is_available,
    nothing_is_lost,
    acknowledged_comes_no_more,
    halves_are_seen_when_committed,
)
