"""What Weir promises to Kafka's clients of what they write and read (see `kafka_checkers`)."""

from collections.abc import Sequence
from itertools import pairwise

from weir.testing.checking import Violation
from weir.testing.kafka.history import KafkaOp
from weir.testing.kafka.truth import Truth
from weir.testing.log_history import LogOpKind
from weir.testing.operations import grouped, of


def producers_can_go_on(ops: Sequence[KafkaOp]) -> list[Violation]:
    """An idempotent producer that leaves nothing out is never told that it does."""
    promise = "a producer that sends in order is never out of order"
    return [
        Violation(promise, f"{op.payload} of {op.client} was refused by {op.part}", (op,))
        for op in of(ops, LogOpKind.REFUSED)
    ]


def numbers_are_used_once(ops: Sequence[KafkaOp]) -> list[Violation]:
    """What has the sequence numbers of something else is not acknowledged as if it were that."""
    promise = "what is acknowledged is what was sent, and not something else with its numbers"
    return [
        Violation(promise, f"{op.payload} of {op.client} was taken by {op.part} for what it is not", (op,))
        for op in of(ops, LogOpKind.OVERWRITE)
        if op.ok
    ]


def offsets_are_dense(ops: Sequence[KafkaOp]) -> list[Violation]:
    """Each offset of a partition has a message or a marker, and only one; but for what transactions delay, whose
    place in the log nobody sees."""
    promise = "offsets are dense"
    found = []
    hidden = {
        part: len(delayed) for part, delayed in grouped(of(ops, LogOpKind.DELAY), lambda op: op.part).items()
    }
    for one, two in pairwise(of(ops, LogOpKind.CONTENT, LogOpKind.MARKER)):
        if one.part != two.part or two.began != one.began + 2:
            continue
        missing = two.offset - one.offset - 1
        if missing:
            hidden[one.part] = hidden.get(one.part, 0) - missing
        if missing < 0 or hidden.get(one.part, 0) < 0:
            sentence = f"{two.offset} follows {one.offset} in {one.part}"
            found.append(Violation(promise, sentence, (one, two)))
    return found


def only_committed_is_read(ops: Sequence[KafkaOp]) -> list[Violation]:
    """Who reads committed gets nothing of a transaction that was aborted, or that nobody has ended yet."""
    promise = "who reads committed gets nothing that is aborted or undecided"
    truth = Truth(ops)
    found = []
    for op in ops:
        committed = op.kind is LogOpKind.READ and op.commits
        if not committed and op.kind not in (LogOpKind.DELIVER, LogOpKind.VISIBLE):
            continue
        token = truth.token_of(op)
        if token is None:
            continue
        decided = truth.marker_of(op.part, op.payload)
        asked = truth.ends.get(token)
        if decided is not None and not decided.commits:
            sentence = f"{op.client} got {op.payload} of {op.part}, which was aborted"
            found.append(Violation(promise, sentence, (op, truth.content[op.part, op.payload], decided)))
        elif (asked is None or not asked.commits or asked.began > op.over) and truth.complete:
            sentence = f"{op.client} got {op.payload} of {op.part} before anybody asked for {token} to commit"
            found.append(Violation(promise, sentence, (op, truth.complete, *([asked] if asked else []))))
    return found


def stable_offset_is_true(ops: Sequence[KafkaOp]) -> list[Violation]:
    """Before the stable offset that a partition tells, everything is decided within what it tells as its end."""
    promise = "the stable offset never passes an open transaction"
    truth = Truth(ops)
    found = []
    for marks in of(ops, LogOpKind.MARKS):
        for message, marker in truth.transactional.get(marks.part, []):
            if message.offset < marks.stable and (marker is None or marker.offset >= marks.high):
                sentence = (
                    f"{marks.part}@{message.offset} is of an open transaction, and {marks.client} was told that "
                    f"{marks.stable} is stable"
                )
                evidence = (marks, message) if marker is None else (marks, message, marker)
                found.append(Violation(promise, sentence, evidence))
                break
    return found


def readers_skip_nothing(ops: Sequence[KafkaOp]) -> list[Violation]:
    """A reader gets everything between the first and the last that it reads, but for what it must not see."""
    promise = "a reader gets everything that is there for it"
    truth = Truth(ops)
    seen: dict[tuple[str, str, bool], dict[int, KafkaOp]] = {}
    for op in of(ops, LogOpKind.READ):
        if not op.group:
            seen.setdefault((op.client, op.part, op.commits), {})[op.offset] = op
    found = []
    for (client, part, committed), reads in seen.items():
        first, last = min(reads), max(reads)
        for message in truth.log.get(part, []):
            if first < message.offset < last and message.offset not in reads:
                if committed and not truth.is_visible(message):
                    continue
                sentence = f"{client} read {part} from {first} to {last} and never got {message.payload}"
                found.append(Violation(promise, sentence, (reads[first], message, reads[last])))
                break
    return found


def everything_is_seen_in_the_end(ops: Sequence[KafkaOp]) -> list[Violation]:
    """After quiet, everything is decided, and what is committed can be read, by whatever protocol."""
    promise = "after quiet, everything is decided and readable"
    truth = Truth(ops)
    visible = {(op.part, op.offset) for op in of(ops, LogOpKind.VISIBLE)}
    delivered = {(op.part, op.payload) for op in of(ops, LogOpKind.DELIVER)}
    drained = {op.part: op for op in of(ops, LogOpKind.DRAINED)}
    found = []
    for end in of(ops, LogOpKind.READ_ALL):
        for message, marker in truth.transactional.get(end.part, []):
            if marker is None:
                sentence = f"{message.payload} of {end.part} is still undecided"
                found.append(Violation(promise, sentence, (message, end)))
        for message in truth.log.get(end.part, []):
            if not truth.is_visible(message):
                continue
            if (end.part, message.offset) not in visible:
                sentence = f"{message.payload} of {end.part} cannot be read as committed"
                found.append(Violation(promise, sentence, (message, end)))
            if end.part in drained and (end.part, message.payload) not in delivered:
                sentence = f"{message.payload} of {end.part} never came to the subscription"
                found.append(Violation(promise, sentence, (message, drained[end.part])))
    return found
