"""Epochs of sinks, asked of the admin REST by code that blocks: Spark's driver."""

from collections.abc import Sequence
from dataclasses import dataclass

from weir.client.admin import Access, ask, join
from weir.model.errors import WireError

SinkAccess = Access


@dataclass(frozen=True, slots=True)
class Written:
    """A task's transaction, with everything that it has written."""

    transactional_id: str
    producer_id: int
    epoch: int


def last_epoch(access: SinkAccess, sink: str) -> int:
    """The last epoch that the sink has written; -1 if none."""
    return _number(ask(access, "GET", join("sinks", sink)), "epoch")


@dataclass(frozen=True, slots=True)
class Epoch:
    """What became of an epoch. `last`: the last one that the sink has written."""

    committed: bool
    last: int


def commit_epoch(
    access: SinkAccess,
    sink: str,
    epoch: int,
    transactions: Sequence[Written],
    *,
    query: str = "",
    instead_of: str = "",
) -> Epoch:
    """Commit all of them, once; not if the sink had written this epoch before. That may have been by these very
    transactions, if an answer was lost on its way: then they are committed, and cannot be aborted. `query`: whose
    epoch it is, by the id of its checkpoint; the broker refuses one that is not of the query that has written the
    last epoch, unless `instead_of` names that query."""
    body = {
        "query": query,
        "insteadOf": instead_of,
        "transactions": [
            {"transactionalId": one.transactional_id, "producerId": one.producer_id, "epoch": one.epoch}
            for one in transactions
        ],
    }
    answer = ask(access, "POST", join("sinks", sink, "epochs", epoch), body)
    return Epoch(bool(isinstance(answer, dict) and answer.get("committed")), _number(answer, "epoch"))


def forget(access: SinkAccess, sink: str) -> None:
    """The sink writes no more."""
    ask(access, "DELETE", join("sinks", sink))


def _number(answer: object, name: str) -> int:
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, int):
        raise WireError("the admin API does not tell epochs as expected")
    return found
