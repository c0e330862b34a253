"""What Weir promises of several brokers beyond what it promises of one (`kafka.checkers.every`)."""

from collections.abc import Sequence

from weir.testing.checking import Checker, Violation
from weir.testing.kafka.checkers import every
from weir.testing.kafka.history import KafkaOp
from weir.testing.log_history import LogOpKind
from weir.testing.operations import of


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


#: Who is not there long enough to be asked for its kind is left out: fetch sessions are with one broker.
CHECKERS: tuple[Checker, ...] = (*every.CHECKERS, an_epoch_has_one_leader)
