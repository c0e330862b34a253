"""The recovery's decision table, for every quorum and every combination of answers."""

import itertools

import pytest

from weir.ledger.transitions import Answer, Verdict, decide
from weir.model.ledger import Quorum

QUORUMS = [Quorum(write, write, ack) for write in range(1, 5) for ack in range(1, write + 1)]


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
def test_every_row_of_the_table(quorum: Quorum) -> None:
    for answers in itertools.product(Answer, repeat=quorum.write):
        verdict = decide(answers, quorum)
        may_hold = sum(answer is not Answer.DENIED for answer in answers)
        if Answer.HELD in answers:
            assert verdict is Verdict.EXISTS
        elif may_hold >= quorum.ack and Answer.UNKNOWN in answers:
            assert verdict is Verdict.UNDECIDED, "an ack quorum may lie among the silent"
        elif may_hold >= quorum.ack:
            assert verdict is Verdict.LOST, "it may have been acknowledged, and all who hold it have it damaged"
        else:
            assert verdict is Verdict.ABSENT, "no ack quorum can ever hold it"
