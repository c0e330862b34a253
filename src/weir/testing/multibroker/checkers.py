"""What Weir promises of several brokers beyond what it promises of one (`kafka.checkers.every`)."""

from collections.abc import Sequence

from weir.model.cluster import BundleName
from weir.model.topics import TopicName
from weir.testing.checking import Checker, Violation
from weir.testing.kafka.checkers import every
from weir.testing.kafka.history import KafkaOp
from weir.testing.leading import Led, going_back
from weir.testing.log_history import LogOpKind
from weir.testing.operations import grouped, of


def an_epoch_has_one_leader(ops: Sequence[KafkaOp]) -> list[Violation]:
    """Nobody else serves a partition as of the same epoch: it grows with every change of hands."""
    promise = "a leader epoch is of one broker"
    known: dict[tuple[str, int], KafkaOp] = {}
    found = []
    for op in of(ops, LogOpKind.LEADER):
        first = known.setdefault((op.part, op.offset), op)
        if first.host != op.host:
            sentence = f"epoch {op.offset} of {op.part} is of {first.host} and of {op.host}"
            found.append(Violation(promise, sentence, (first, op)))
    return found


def epochs_never_go_back(ops: Sequence[KafkaOp]) -> list[Violation]:
    """The leader epoch of a bundle grows with each change of hands, and its halves go on where it was."""
    return going_back((op, Led(op.part, op.host, op.offset)) for op in of(ops, LogOpKind.LED))


def epochs_grow_along_the_log(ops: Sequence[KafkaOp]) -> list[Violation]:
    """What stands later in a partition was not written in an earlier epoch."""
    promise = "leader epochs do not go back along a partition"
    found = []
    for entries in grouped(of(ops, LogOpKind.CONTENT, LogOpKind.MARKER), lambda op: op.part).values():
        before: KafkaOp | None = None
        for op in sorted(entries, key=lambda op: op.offset):
            if before is not None and op.epoch < before.epoch:
                sentence = (
                    f"{op.part}@{op.offset} is of epoch {op.epoch}, behind @{before.offset} of {before.epoch}"
                )
                found.append(Violation(promise, sentence, (before, op)))
            before = op
    return found


def only_the_leader_acknowledges(ops: Sequence[KafkaOp]) -> list[Violation]:
    """Once a partition was served as of an epoch, nobody who led it before stores anything in it any more."""
    promise = "two brokers never both take messages for a partition"
    served = grouped(of(ops, LogOpKind.LEADER), lambda op: op.part)
    claims = [(BundleName.parse(op.part), op) for op in of(ops, LogOpKind.LED)]
    topics = {part: _topic_of(part) for part in served}
    sent: set[tuple[str, str]] = set()
    found = []
    for ack in of(ops, LogOpKind.PUBLISH):
        first = (ack.part, ack.payload) not in sent  # what was sent before may be known to be stored
        sent.add((ack.part, ack.payload))
        if not ack.ok or not first or not ack.host or ack.part not in served:
            continue
        others = [op for op in served[ack.part] if op.over < ack.began and op.host != ack.host]
        if not others:
            continue
        latest = max(others, key=lambda op: op.offset)
        if not any(
            claim.began < ack.over
            and claim.offset > latest.offset
            and claim.host.startswith(f"{ack.host}/")
            and bundle.holds(topics[ack.part])
            for bundle, claim in claims
        ):
            sentence = (
                f"{ack.payload} was acknowledged by {ack.host} at {ack.part}@{ack.offset}, "
                f"after {latest.host} had served it in epoch {latest.offset}"
            )
            found.append(Violation(promise, sentence, (latest, ack)))
    return found


def _topic_of(part: str) -> TopicName:
    topic, _, number = part.rpartition("-")
    return TopicName.parse(topic).at(int(number))


CHECKERS: tuple[Checker, ...] = (
    *every.CHECKERS,
    an_epoch_has_one_leader,
    epochs_never_go_back,
    epochs_grow_along_the_log,
    only_the_leader_acknowledges,
)
