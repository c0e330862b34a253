"""What Weir promises of messages in logs, whichever protocol they come and go by (see `checking`).

What the final reader found (CONTENT) is the log; its order is the order of the log. A publish that failed or was
never answered may be stored or not, also later; more than once only if sending again is not harmless.
"""

from collections.abc import Sequence

from weir.testing.checking import AVAILABLE, Violation
from weir.testing.log_history import LogOp, LogOpKind
from weir.testing.operations import grouped, of


def acknowledged_is_stored(ops: Sequence[LogOp]) -> list[Violation]:
    """What a producer was told is stored (or held until its moment) is in the log in the end."""
    promise = "an acknowledged message is never lost"
    stored = {_message(op) for op in of(ops, LogOpKind.CONTENT)}
    cancelled = {_message(op) for op in of(ops, LogOpKind.CANCEL)}
    ends = _ends(ops)
    lost = [
        ack
        for ack in of(ops, LogOpKind.PUBLISH)
        if ack.ok and ack.log in ends and _message(ack) not in stored and _message(ack) not in cancelled
    ]
    return [
        Violation(
            promise,
            f"{ack.payload} was acknowledged to {ack.client} and is not in {ack.log}",
            (ack, ends[ack.log]),
        )
        for ack in lost
        if not _may_be_deleted(ack, ends[ack.log])
    ]


def receipts_say_where(ops: Sequence[LogOp]) -> list[Violation]:
    """A receipt names the place where the message is for ever; no two messages get the same place."""
    promise = "an acknowledged message is where its receipt says"
    content = {(op.log, op.spot): op for op in of(ops, LogOpKind.CONTENT)}
    first: dict[object, LogOp] = {}
    found = []
    for ack in of(ops, LogOpKind.PUBLISH):
        if not ack.ok or ack.spot is None:
            continue
        there = content.get((ack.log, ack.spot))
        if there is not None and there.payload != ack.payload:
            sentence = f"{ack.payload} was acknowledged at {ack.spot} of {ack.log}, where {there.payload} stands"
            found.append(Violation(promise, sentence, (ack, there)))
        other = first.setdefault((ack.log, ack.spot), ack)
        if other.payload != ack.payload:
            sentence = f"{other.payload} and {ack.payload} were both acknowledged at {ack.spot} of {ack.log}"
            found.append(Violation(promise, sentence, (other, ack)))
    return found


def stored_once(ops: Sequence[LogOp]) -> list[Violation]:
    """A message that may be sent again is stored once; any other not more often than it was sent."""
    promise = "nothing is stored twice that may be sent again"
    sent = grouped(of(ops, LogOpKind.PUBLISH), _message)
    found = []
    for message, stored in grouped(of(ops, LogOpKind.CONTENT), _message).items():
        attempts = sent.get(message, [])
        most = 1 if any(op.once for op in attempts) else len(attempts)
        if attempts and len(stored) > most:
            sentence = f"{message[1]} stands {len(stored)} times in {message[0]}, {most} at the most is right"
            found.append(Violation(promise, sentence, (*attempts, *stored)))
    return found


def producers_order_is_kept(ops: Sequence[LogOp]) -> list[Violation]:
    """Messages of one producer stand as it first sent them, in order and without holes; delayed ones apart."""
    promise = "messages of a producer are stored in the order in which it sent them"
    content = grouped(of(ops, LogOpKind.CONTENT), lambda op: op.log)
    sent: dict[tuple[str, str], dict[str, LogOp]] = {}
    for op in of(ops, LogOpKind.PUBLISH):
        if op.due_at is None:
            sent.setdefault((op.log, op.client), {}).setdefault(op.payload, op)
    deleted = {end.log for end in of(ops, LogOpKind.READ_ALL) if end.start is not None}
    found = []
    for (log, _), messages in sent.items():
        if log in deleted and not all(op.once for op in messages.values()):
            continue  # of what was stored twice, the first may be gone
        order = iter(messages)
        seen: dict[str, None] = {}
        for op in content.get(log, []):
            if op.payload not in messages or op.payload in seen:
                continue
            seen[op.payload] = None
            expected = next(order, op.payload)
            while len(seen) == 1 and log in deleted and expected != op.payload:
                expected = next(order, op.payload)
            if expected != op.payload:
                sentence = f"{op.payload} stands in {log} without {expected}, which was sent before it"
                found.append(Violation(promise, sentence, (messages[expected], messages[op.payload], op)))
                break
    return found


def what_was_seen_stays(ops: Sequence[LogOp]) -> list[Violation]:
    """What was ever read or delivered is in the log for good, at the same place, with the same content."""
    promise = "what was seen stays where it was"
    content = {(op.log, op.spot): op for op in of(ops, LogOpKind.CONTENT)}
    ends = _ends(ops)
    found = []
    for op in of(ops, LogOpKind.READ, LogOpKind.DELIVER):
        if op.spot is None:
            continue
        there = content.get((op.log, op.spot))
        if there is not None and there.payload != op.payload:
            sentence = f"{op.client} got {op.payload} at {op.spot} of {op.log}, where {there.payload} stands"
            found.append(Violation(promise, sentence, (op, there)))
        elif there is None and op.log in ends and not _may_be_deleted(op, ends[op.log]):
            sentence = f"{op.client} got {op.payload} at {op.spot} of {op.log}, where nothing is in the end"
            found.append(Violation(promise, sentence, (op, ends[op.log])))
    return found


def delays_are_kept(ops: Sequence[LogOp]) -> list[Violation]:
    """A delayed message is seen by nobody before its moment."""
    promise = "a delayed message does not come before its moment"
    due = {_message(op): op for op in of(ops, LogOpKind.PUBLISH, LogOpKind.DELAY) if op.due_at is not None}
    found = []
    for op in of(ops, LogOpKind.READ, LogOpKind.DELIVER):
        sent = due.get(_message(op))
        if sent is not None and sent.due_at is not None and op.began_at < sent.due_at:
            sentence = f"{op.client} got {op.payload}, which is due at {sent.due_at:.3f}s, at {op.began_at:.3f}s"
            found.append(Violation(promise, sentence, (sent, op)))
    return found


def all_is_available_after_healing(ops: Sequence[LogOp]) -> list[Violation]:
    """With everything healed, logs can be read to their ends, and subscriptions and groups take new consumers."""
    return [Violation(AVAILABLE, f"{op.log} is not: {op.error}", (op,)) for op in of(ops, LogOpKind.MISSING)]


def _message(op: LogOp) -> tuple[str, str]:
    return (op.log, op.payload)


def _may_be_deleted(op: LogOp, end: LogOp) -> bool:
    """Whether it stands, or may stand, before the beginning of its log."""
    return end.start is not None and (op.spot is None or op.spot < end.start)


def _ends(ops: Sequence[LogOp]) -> dict[str, LogOp]:
    """The final reader's word of each log that it has read everything."""
    return {op.log: op for op in of(ops, LogOpKind.READ_ALL)}
