"""What is promised of half, delayed and grouped messages, as pure functions from a history.

What counts as what, exactly:
- A prepare, a hold or a send that failed or was never answered may be stored or not; nobody tries it again, so
  it is there at the most once. A decision or a cancellation that failed may have been made or not.
- A roll-back and a commit bind from their answer on, whoever asked, and of one message only one of them.
- A message of a group is out from the moment that a consumer gets it until that acknowledges it, gives it back or
  leaves. What stands before it in the log is acknowledged first, by whomever.
"""

from collections.abc import Sequence

from weir.testing.checking import AVAILABLE, Checker, Violation
from weir.testing.half.history import HalfOp, HalfOpKind
from weir.testing.operations import FINAL, grouped, of

_NOT_HELD = "NotHeldError"
_OTHERWISE = "HalfDecidedError"


def all_is_available(ops: Sequence[HalfOp]) -> list[Violation]:
    """With everything healed, every topic can be read."""
    return [Violation(AVAILABLE, f"{op.topic} is not: {op.error}", (op,)) for op in of(ops, HalfOpKind.MISSING)]


def _content(ops: Sequence[HalfOp], topic: str) -> dict[int, list[HalfOp]]:
    return grouped([op for op in of(ops, HalfOpKind.CONTENT) if op.topic == topic], lambda op: op.number)


def a_half_message_is_not_seen_early(ops: Sequence[HalfOp]) -> list[Violation]:
    """Nobody sees it before somebody asked for its commit."""
    promise = "a half message is not seen before it is committed"
    first: dict[int, HalfOp] = {}
    for op in of(ops, HalfOpKind.COMMIT):
        first.setdefault(op.number, op)
    return [
        Violation(promise, f"{op.number} was seen before", (op,))
        for op in of(ops, HalfOpKind.SEEN, HalfOpKind.CONTENT)
        if op.topic == "half" and (op.number not in first or first[op.number].began > op.began)
    ]


def a_half_message_is_never_lost(ops: Sequence[HalfOp]) -> list[Violation]:
    """What was prepared can be committed in the end, unless somebody asked for its roll-back, or nothing was heard
    of it for too long; and how it was decided is known."""
    promise = "a half message is never lost"
    rolled_back = {op.number for op in of(ops, HalfOpKind.ROLL_BACK)}
    gives_up = any(op.gives_up for op in of(ops, HalfOpKind.RULES))
    prepared = {op.number: op for op in of(ops, HalfOpKind.PREPARE) if op.ok}
    found = []
    for op in of(ops, HalfOpKind.COMMIT):
        if op.client != FINAL or op.number not in prepared or op.ok:
            continue
        if op.error.startswith(_NOT_HELD):
            sentence = f"nobody knows of {op.number}, which was prepared"
        elif op.error.startswith(_OTHERWISE) and op.number not in rolled_back and not gives_up:
            sentence = f"{op.number} is rolled back, and nobody asked for that"
        else:
            continue
        found.append(Violation(promise, sentence, (prepared[op.number], op)))
    return found


def a_half_message_is_decided_once(ops: Sequence[HalfOp]) -> list[Violation]:
    """It is in the topic once if it was committed, and not at all if it was rolled back; no two are told different
    things."""
    promise = "a half message is decided once"
    content = _content(ops, "half")
    drained = bool(of(ops, HalfOpKind.CONTENT)) or any(op.client == FINAL for op in of(ops, HalfOpKind.COMMIT))
    decided = grouped(
        [op for op in of(ops, HalfOpKind.COMMIT, HalfOpKind.ROLL_BACK) if op.ok], lambda op: op.number
    )
    found = [
        Violation(promise, f"{number} is in the topic {len(same)} times", tuple(same))
        for number, same in content.items()
        if len(same) > 1
    ]
    for number, answers in decided.items():
        kinds = {op.kind: op for op in answers}
        if len(kinds) > 1:
            found.append(Violation(promise, f"{number} was decided in both ways", tuple(kinds.values())))
        elif HalfOpKind.ROLL_BACK in kinds and number in content:
            found.append(
                Violation(promise, f"{number} was rolled back, and is there", (answers[0], *content[number]))
            )
        elif HalfOpKind.COMMIT in kinds and number not in content and drained:
            found.append(Violation(promise, f"{number} was committed, and is not there", tuple(answers[:1])))
    return found


def a_recall_or_a_release(ops: Sequence[HalfOp]) -> list[Violation]:
    """What is cancelled is never seen; what is refused to be cancelled, or that nobody asked for, is in the topic,
    once, and not before its moment."""
    promise = "a delayed message is recalled or released"
    content = _content(ops, "recall")
    cancels = grouped(of(ops, HalfOpKind.CANCEL), lambda op: op.number)
    missing = any(op.topic == "recall" for op in of(ops, HalfOpKind.MISSING))
    found = []
    for op in of(ops, HalfOpKind.HOLD):
        there, tried = content.get(op.number, []), cancels.get(op.number, [])
        done = [one for one in tried if one.ok]
        if len(there) > 1:
            found.append(Violation(promise, f"{op.number} is there {len(there)} times", (op, *there)))
        elif there and done:
            found.append(Violation(promise, f"{op.number} was cancelled, and is there", (op, *done, *there)))
        elif op.ok and not there and not missing and all(one.error.startswith(_NOT_HELD) for one in tried):
            found.append(Violation(promise, f"{op.number} was held, and is not there", (op, *tried)))
    due = {op.number: op for op in of(ops, HalfOpKind.HOLD)}
    early = [
        Violation(promise, f"{op.number} was seen before its moment", (due[op.number], op))
        for op in of(ops, HalfOpKind.SEEN)
        if op.topic == "recall" and op.number in due and op.moment_ms < due[op.number].moment_ms
    ]
    return found + early


def a_group_is_in_order(ops: Sequence[HalfOp]) -> list[Violation]:
    """A message is delivered once all before it in its group are acknowledged, and while no other of it is out at
    the same broker."""
    promise = "messages of a group are delivered in order"
    order = grouped([op for op in of(ops, HalfOpKind.CONTENT) if op.topic == "groups"], lambda op: op.group)
    place = {op.number: at for group in order.values() for at, op in enumerate(group)}
    acked: set[int] = set()
    first: dict[str, int] = dict.fromkeys(order, 0)
    out: dict[tuple[str, str], HalfOp] = {}
    found = []
    for op in ops:
        life = op.client.partition("/")[0]
        if op.topic != "groups":
            continue
        if op.kind is HalfOpKind.END:
            out = {where: held for where, held in out.items() if held.client != op.client}
        elif op.kind is HalfOpKind.SEEN and op.number in place:
            before = out.get((life, op.group))
            if before is not None and before.number != op.number:
                found.append(Violation(promise, f"{op.number} came while {before.number} was out", (before, op)))
            elif place[op.number] > first[op.group]:
                late = order[op.group][first[op.group]].number
                found.append(Violation(promise, f"{op.number} came before {late} was acknowledged", (op,)))
            out[life, op.group] = op
        elif op.kind in (HalfOpKind.ACK, HalfOpKind.GIVE_BACK):
            held = out.get((life, op.group))
            if held is not None and held.number == op.number and held.client == op.client:
                del out[life, op.group]
            if op.kind is HalfOpKind.ACK:
                acked.add(op.number)
                group = order.get(op.group, [])
                while (at := first.get(op.group, 0)) < len(group) and group[at].number in acked:
                    first[op.group] = at + 1
    return found


def a_group_goes_on(ops: Sequence[HalfOp]) -> list[Violation]:
    """What was sent is delivered in the end."""
    promise = "messages of a group are delivered"
    seen = {op.number for op in of(ops, HalfOpKind.SEEN) if op.topic == "groups"}
    sent = {op.number: op for op in of(ops, HalfOpKind.SEND)}
    missing = any(op.topic == "groups" for op in of(ops, HalfOpKind.MISSING))
    return [
        Violation(promise, f"{op.number} of {op.group} was never delivered", (sent[op.number], op))
        for op in of(ops, HalfOpKind.CONTENT)
        if op.topic == "groups" and op.number not in seen and op.number in sent and not missing
    ]


CHECKERS: tuple[Checker, ...] = (
    all_is_available,
    a_half_message_is_not_seen_early,
    a_half_message_is_never_lost,
    a_half_message_is_decided_once,
    a_recall_or_a_release,
    a_group_is_in_order,
    a_group_goes_on,
)
