"""The shortest sub-history that a checker still rejects with the same sentence.

Checkers are pure, so this is plain delta debugging over a list of operations: leave out ever smaller chunks,
keep what still fails. The sentence has to stay the same to the letter: leaving an operation out may make
innocent ones look guilty (a read whose append is gone), and such a new violation is not the one found.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from weir.testing.broker_checkers import CHECKERS as BROKER_CHECKERS
from weir.testing.broker_checkers import Violation as BrokerViolation
from weir.testing.broker_history import BrokerOp
from weir.testing.checkers import CHECKERS, Violation
from weir.testing.history import Op
from weir.testing.kafka_checkers import CHECKERS as KAFKA_CHECKERS
from weir.testing.kafka_checkers import KafkaViolation
from weir.testing.kafka_history import KafkaOp

T = TypeVar("T")
AnyViolation = Violation | BrokerViolation | KafkaViolation


def shrink(ops: Sequence[Op], violation: Violation) -> tuple[Op, ...]:
    """The fewest operations (none of them can be left out alone) that still break the promise in the same way."""
    return shortest(ops, _who_says(ops, violation, CHECKERS))


def shrink_broker(ops: Sequence[BrokerOp], violation: BrokerViolation) -> tuple[BrokerOp, ...]:
    """The same for the history of a broker run."""
    return shortest(ops, _who_says(ops, violation, BROKER_CHECKERS))


def shrink_kafka(ops: Sequence[KafkaOp], violation: KafkaViolation) -> tuple[KafkaOp, ...]:
    """The same for the history of a Kafka run."""
    return shortest(ops, _who_says(ops, violation, KAFKA_CHECKERS))


def _who_says(
    ops: Sequence[T],
    violation: AnyViolation,
    checkers: "Sequence[Callable[[Sequence[T]], Sequence[AnyViolation]]]",
) -> Callable[[Sequence[T]], bool]:
    """Whether a history breaks the same promise with the same sentence, by the checker that said so."""
    wanted = (violation.promise, violation.sentence)
    for checker in checkers:
        if wanted in [(found.promise, found.sentence) for found in checker(ops)]:
            chosen = checker
            return lambda kept: wanted in [(found.promise, found.sentence) for found in chosen(kept)]
    raise ValueError(f"no checker says of this history: {violation}")


def shortest(ops: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
    """Leave out ever smaller chunks as long as what is left still fails."""
    kept = list(ops)
    chunk = max(1, len(kept) // 2)
    while True:
        shorter = _without_chunks(kept, chunk, fails)
        if chunk == 1 and len(shorter) == len(kept):
            return tuple(kept)
        kept = shorter
        chunk = max(1, min(chunk // 2, len(kept) // 2))


def _without_chunks(ops: list[T], chunk: int, fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """One pass: every chunk that is not needed is gone."""
    kept = ops
    start = 0
    while start < len(kept):
        shorter = kept[:start] + kept[start + chunk :]
        if fails(shorter):
            kept = shorter
        else:
            start += chunk
    return kept
