"""What queues promise, as pure functions from a history to the places where a promise was broken.

What counts as what, exactly:
- A publish that failed or was never answered may be in its queue or not, also later; so may a transient one,
  whatever was answered. Every message is sent once, and is in its queue at the most once.
- An acknowledgement binds once it is durable; from then on the message is nowhere, and comes to no consumer that
  begins later. One that nobody heard of again may count or not.
- A message that was rejected, or whose time is over, is a dead letter, or, after a crash, in its queue again; once
  its letter is there, it is not delivered to anybody who begins later, and never in its queue.
- A consumer that is alone gets messages in the order of their publishing, those that it gave back in their old
  places.
"""

from collections.abc import Sequence

from weir.testing.checking import AVAILABLE, Checker, Violation
from weir.testing.operations import grouped, of
from weir.testing.queues.history import QueueOp, QueueOpKind
from weir.testing.queues.workers import DEAD, LATE, TIMED, WORK

#: Where the dead letters of a queue are.
_LETTERS = {WORK: DEAD, TIMED: LATE}
_SOURCE = {DEAD: WORK, LATE: TIMED}


def all_is_available(ops: Sequence[QueueOp]) -> list[Violation]:
    """With everything healed, every queue can be emptied."""
    return [Violation(AVAILABLE, f"{op.queue} is not: {op.error}", (op,)) for op in of(ops, QueueOpKind.MISSING)]


def confirmed_is_never_lost(ops: Sequence[QueueOp]) -> list[Violation]:
    """What was confirmed is in its queue in the end, or a dead letter, unless a consumer acknowledged it; in the
    queue that times messages out and has no place for them, nothing is lost either."""
    promise = "what was confirmed is never lost"
    there = {(op.queue, op.number) for op in of(ops, QueueOpKind.CONTENT)}
    acked = {(op.queue, op.number) for op in of(ops, QueueOpKind.ACK)}
    drained = {op.queue: op for op in of(ops, QueueOpKind.DRAINED)}
    found = []
    for op in of(ops, QueueOpKind.PUBLISH):
        letters = _LETTERS[op.queue]
        known = op.queue in drained and letters in drained
        if not op.ok or op.transient or not known or (op.queue, op.number) in acked:
            continue
        if (op.queue, op.number) not in there and (letters, op.number) not in there:
            sentence = f"{op.number} was confirmed, and is neither in {op.queue} nor in {letters}"
            found.append(Violation(promise, sentence, (op, drained[op.queue], drained[letters])))
    return found


def a_dead_letter_exists_once(ops: Sequence[QueueOp]) -> list[Violation]:
    """However often brokers die while they send it."""
    promise = "a dead letter exists exactly once"
    letters = [op for op in of(ops, QueueOpKind.CONTENT) if op.queue in _SOURCE]
    found = []
    for (queue, number), same in grouped(letters, lambda op: (op.queue, op.number)).items():
        if len(same) > 1:
            found.append(Violation(promise, f"{number} is in {queue} {len(same)} times", tuple(same)))
    return found


def a_message_is_there_once(ops: Sequence[QueueOp]) -> list[Violation]:
    """Wherever it was: in memory, in the log, or carried from one broker to the next."""
    promise = "a message is in its queue once, in the place in which it was published"
    content = [op for op in of(ops, QueueOpKind.CONTENT) if op.queue in _LETTERS]
    found = []
    for (queue, number), same in grouped(content, lambda op: (op.queue, op.number)).items():
        if len(same) > 1:
            found.append(Violation(promise, f"{number} is in {queue} {len(same)} times", tuple(same)))
    publisher = {(op.queue, op.number): op.client for op in of(ops, QueueOpKind.PUBLISH) if op.ok}
    last: dict[tuple[str, str], QueueOp] = {}
    for op in content:
        client = publisher.get((op.queue, op.number))
        if client is None:  # nobody knows when it came
            continue
        before = last.get((op.queue, client))
        if before is not None and before.number > op.number:
            sentence = f"{client} published {op.number} to {op.queue} before {before.number}: it came behind it"
            found.append(Violation(promise, sentence, (before, op)))
        last[op.queue, client] = op
    return found


def a_message_has_one_fate(ops: Sequence[QueueOp]) -> list[Violation]:
    """What is a dead letter is not in its queue, and was not acknowledged for good."""
    promise = "what is a dead letter is nothing else"
    content = grouped(of(ops, QueueOpKind.CONTENT), lambda op: (op.queue, op.number))
    acked = {(op.queue, op.number): op for op in of(ops, QueueOpKind.ACK) if op.ok}
    found = []
    for (queue, number), letters in content.items():
        if queue not in _SOURCE:
            continue
        source = _SOURCE[queue]
        for other in (*content.get((source, number), ())[:1], acked.get((source, number))):
            if other is not None:
                what = "acknowledged in" if other.kind is QueueOpKind.ACK else "in"
                sentence = f"{number} is in {queue}, and {what} {source}"
                found.append(Violation(promise, sentence, (letters[0], other)))
    return found


def acknowledged_comes_no_more(ops: Sequence[QueueOp]) -> list[Violation]:
    """Once an acknowledgement is durable, the message comes to nobody who begins later, and is in no queue."""
    promise = "what was acknowledged comes no more"
    acked = {(op.queue, op.number): op for op in of(ops, QueueOpKind.ACK) if op.ok}
    began = {op.client: op.began for op in of(ops, QueueOpKind.CONSUME)}
    found = []
    for op in of(ops, QueueOpKind.DELIVER, QueueOpKind.CONTENT):
        ack = acked.get((op.queue, op.number))
        if ack is not None and (op.kind is QueueOpKind.CONTENT or began.get(op.client, 0) > ack.over):
            sentence = f"{op.number} of {op.queue} was acknowledged by {ack.client}, and came to {op.client}"
            found.append(Violation(promise, sentence, (ack, op)))
    return found


def nothing_comes_from_nowhere(ops: Sequence[QueueOp]) -> list[Violation]:
    """Only what was rejected is a dead letter of a queue in which nothing expires."""
    promise = "only what was given up is a dead letter"
    rejected = {(op.queue, op.number) for op in of(ops, QueueOpKind.REJECT)}
    return [
        Violation(promise, f"nobody rejected {op.number}, and it is in {DEAD}", (op,))
        for op in of(ops, QueueOpKind.CONTENT)
        if op.queue == DEAD and (WORK, op.number) not in rejected
    ]


def order_is_kept(ops: Sequence[QueueOp]) -> list[Violation]:
    """What a consumer gives back comes to it again before anything that stands behind it."""
    promise = "what is requeued goes back to its old place"
    alone = {op.client for op in of(ops, QueueOpKind.CONSUME) if op.alone}
    found = []
    for client, seen in grouped(of(ops, QueueOpKind.DELIVER, QueueOpKind.REQUEUE), lambda op: op.client).items():
        if client in alone:
            found += _in_order(promise, seen)
    return found


def _in_order(promise: str, seen: Sequence[QueueOp]) -> list[Violation]:
    back: dict[int, QueueOp] = {}
    for op in seen:
        if op.kind is QueueOpKind.REQUEUE:
            back[op.number] = op
            continue
        back.pop(op.number, None)
        before = next((given for given in back.values() if given.number < op.number), None)
        if before is not None:
            sentence = f"{op.client} gave {before.number} back, and got {op.number} of {op.queue} first"
            return [Violation(promise, sentence, (before, op))]
    return []


CHECKERS: tuple[Checker, ...] = (
    all_is_available,
    confirmed_is_never_lost,
    a_dead_letter_exists_once,
    a_message_is_there_once,
    a_message_has_one_fate,
    acknowledged_comes_no_more,
    nothing_comes_from_nowhere,
    order_is_kept,
)
