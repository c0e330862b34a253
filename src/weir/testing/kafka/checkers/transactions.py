"""What Weir promises to Kafka's clients of transactions (see `kafka_checkers`)."""

from collections.abc import Sequence

from weir.testing.checking import Violation
from weir.testing.kafka.history import KafkaOp
from weir.testing.kafka.truth import PIPE, Truth
from weir.testing.log_history import LogOpKind
from weir.testing.operations import grouped, of


def transactions_are_atomic(ops: Sequence[KafkaOp]) -> list[Violation]:
    """A transaction is committed in every partition that it wrote to, or in none, and as was answered."""
    promise = "a transaction is committed as a whole, or not at all"
    truth = Truth(ops)
    found = []
    for token, messages in truth.tokens.items():
        end = truth.ends.get(token)
        decided = [(message, truth.marker_of(message.part, message.payload)) for message in messages]
        yes = [(message, marker) for message, marker in decided if marker is not None and marker.commits]
        no = [(message, marker) for message, marker in decided if marker is not None and not marker.commits]
        wrong = (no if end.commits else yes) if end is not None and end.ok else []
        if yes and no:
            sentence = f"{token} is committed in {yes[0][0].part} and aborted in {no[0][0].part}"
            found.append(Violation(promise, sentence, (*yes[0], *no[0])))
        if end is not None and wrong:
            word = "aborted" if end.commits else "committed"
            sentence = f"{token} was ended as {end.client} asked, and {wrong[0][0].payload} is {word}"
            found.append(Violation(promise, sentence, (end, *wrong[0])))
        if end is not None and yes and not end.commits:
            sentence = f"{token} was to be aborted, and {yes[0][0].payload} is committed"
            found.append(Violation(promise, sentence, (end, *yes[0])))
    return found


def processed_exactly_once(ops: Sequence[KafkaOp]) -> list[Violation]:
    """What a pipeline has moved past was processed once, what it has not was never."""
    promise = "every message is processed exactly once"
    truth = Truth(ops)
    if of(ops, LogOpKind.MISSING):
        return []  # who has not seen everything cannot tell
    outcomes: dict[str, list[KafkaOp]] = {}
    for op in of(ops, LogOpKind.VISIBLE):
        _, _, text = op.payload.partition(f"|{PIPE}|")
        if text:
            outcomes.setdefault(text, []).append(op)
    found = []
    for end in of(ops, LogOpKind.POSITION):
        if not end.final or end.group != PIPE or not end.ok:
            continue
        for message in truth.log.get(end.part, []):
            came = outcomes.get(f"{end.part}@{message.offset}", [])
            due = 1 if truth.is_visible(message) and message.offset < end.offset else 0
            if len(came) != due and of(ops, LogOpKind.READ_ALL):
                sentence = f"{end.part}@{message.offset} was processed {len(came)} times, {due} is right"
                found.append(Violation(promise, sentence, (message, end, *came, *of(ops, LogOpKind.READ_ALL))))
    return found


def delayed_follow_their_transaction(ops: Sequence[KafkaOp]) -> list[Violation]:
    """What a transaction delays is there once if it is committed, and seen by nobody before; else never."""
    promise = "what a transaction delays is seen once after its commit, and never without"
    truth = Truth(ops)
    seen = grouped(of(ops, LogOpKind.READ, LogOpKind.DELIVER, LogOpKind.CONTENT), _message)
    ends = {op.part: op for op in of(ops, LogOpKind.READ_ALL)}
    found = []
    for message, sent in grouped(of(ops, LogOpKind.DELAY), _message).items():
        first, asked = sent[0], truth.ends.get(sent[0].token)
        early = [op for op in seen.get(message, []) if asked is None or not asked.commits or op.over < asked.began]
        copies = of(seen.get(message, []), LogOpKind.CONTENT)
        if early:
            sentence = f"{early[0].client} got {first.payload}, and nobody had asked for {first.token} to commit"
            found.append(Violation(promise, sentence, (first, early[0], *([asked] if asked else []))))
        elif copies and truth.is_aborted(first.token):
            sentence = f"{first.payload} is in {first.part}, and {first.token} was aborted"
            found.append(Violation(promise, sentence, (first, *copies, *truth.tokens[first.token])))
        elif len(copies) > 1:
            sentence = f"{first.payload} stands {len(copies)} times in {first.part}"
            found.append(Violation(promise, sentence, (first, *copies)))
        elif not copies and first.part in ends and _is_owed(first, sent, truth, ops):
            sentence = f"{first.payload} was delayed by {first.token}, which is committed, and never came"
            evidence = (*sent, ends[first.part], *([asked] if asked else []))
            found.append(Violation(promise, sentence, (*evidence, *truth.tokens.get(first.token, ()))))
    return found


def _is_owed(first: KafkaOp, sent: Sequence[KafkaOp], truth: Truth, ops: Sequence[KafkaOp]) -> bool:
    """Whether a delayed message must be seen in the end. While its transaction is open it stands in the log, where
    it may be deleted."""
    asked = truth.ends.get(first.token)
    committed = truth.is_committed(first.token) or (asked is not None and asked.ok and asked.commits)
    deleted = any(op.part == first.part for op in of(ops, LogOpKind.DELETE))
    return committed and not deleted and any(op.ok for op in sent)


def _message(op: KafkaOp) -> tuple[str, str]:
    return (op.part, op.payload)
