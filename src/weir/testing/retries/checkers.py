"""What retries promise, as pure functions from a history to the places where a promise was broken.

- A publish that failed or was never answered may be there or not. Every message is sent once.
- An acknowledgement binds once it is durable; one that nobody heard of again may count or not.
- In the end a message waits for the subscription, or is a dead letter, or is acknowledged: one of these, and once,
  however often it died and was put back.
"""

from collections.abc import Sequence

from weir.testing.checking import AVAILABLE, Checker, Violation
from weir.testing.operations import grouped, of
from weir.testing.retries.history import RetryOp, RetryOpKind


def all_is_available(ops: Sequence[RetryOp]) -> list[Violation]:
    """With everything healed, both places can be emptied."""
    return [Violation(AVAILABLE, f"{op.place} is not: {op.error}", (op,)) for op in of(ops, RetryOpKind.MISSING)]


def nothing_is_lost(ops: Sequence[RetryOp]) -> list[Violation]:
    """What was confirmed, and was never acknowledged, waits or is a dead letter."""
    promise = "what was confirmed is never lost"
    there = {op.number for op in of(ops, RetryOpKind.CONTENT)}
    acked = {op.number for op in of(ops, RetryOpKind.ACK)}
    drained = of(ops, RetryOpKind.DRAINED)
    return [
        Violation(promise, f"{op.number} is neither there nor a dead letter", (op, *drained))
        for op in of(ops, RetryOpKind.PUBLISH)
        if op.ok and drained and op.number not in there and op.number not in acked
    ]


def a_message_is_there_once(ops: Sequence[RetryOp]) -> list[Violation]:
    """As a dead letter or as a message, however often brokers die while it goes from one to the other."""
    promise = "a message is there once, dead or not"
    found = []
    for number, same in grouped(of(ops, RetryOpKind.CONTENT), lambda op: op.number).items():
        if len(same) > 1:
            where = " and ".join(op.place for op in same)
            found.append(Violation(promise, f"{number} is in {where}", tuple(same)))
    return found


def acknowledged_is_over(ops: Sequence[RetryOp]) -> list[Violation]:
    """Once an acknowledgement is durable, the message is nowhere."""
    promise = "what was acknowledged is nowhere"
    acked = {op.number: op for op in of(ops, RetryOpKind.ACK) if op.ok}
    return [
        Violation(promise, f"{op.number} was acknowledged by {acked[op.number].client}", (acked[op.number], op))
        for op in of(ops, RetryOpKind.CONTENT)
        if op.number in acked
    ]


def only_what_failed_dies(ops: Sequence[RetryOp]) -> list[Violation]:
    """A dead letter was rejected, or was delivered as often as it says, which is as often as allowed."""
    promise = "only what failed often enough is a dead letter"
    rejected = {op.number for op in of(ops, RetryOpKind.REJECT)}
    delivered = grouped(of(ops, RetryOpKind.DELIVER), lambda op: op.number)
    found = []
    for op in of(ops, RetryOpKind.CONTENT):
        if op.reason == "rejected" and op.number not in rejected:
            found.append(Violation(promise, f"nobody rejected {op.number}", (op,)))
        if op.reason == "delivery_limit" and len(delivered.get(op.number, ())) < op.deliveries:
            said = f"{op.number} was delivered {len(delivered.get(op.number, ()))} times, and says {op.deliveries}"
            found.append(Violation(promise, said, (op,)))
        if op.reason == "delivery_limit" and op.deliveries < _limit(ops):
            found.append(Violation(promise, f"{op.number} died after {op.deliveries} deliveries", (op,)))
    return found


def _limit(ops: Sequence[RetryOp]) -> int:
    return max((op.deliveries for op in of(ops, RetryOpKind.DRAINED)), default=0)


CHECKERS: tuple[Checker, ...] = (
    all_is_available,
    nothing_is_lost,
    a_message_is_there_once,
    acknowledged_is_over,
    only_what_failed_dies,
)
