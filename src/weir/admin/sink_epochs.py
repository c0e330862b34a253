"""Sinks that write each epoch exactly once: calls from the driver of a stream processor to the coordinator.

Tasks write in their own transactions. The driver then commits all of them with one durable decision, which also
records that the sink has written this epoch. A repeated commit of an epoch has no effect, and its answer says so.
"""

from typing import Annotated

from msgspec import Meta, Struct

from weir.admin.context import AdminContext
from weir.broker.api.transactions import ProducerIdentity, Transactions
from weir.rest.routes import Call, Int, Long, RefusedError, Route

_BASE = "/admin/weir/v1/sinks/{sink}"
_TAG = "sinks"
_MAX_TRANSACTIONS = 100_000
_MAX_QUERY = 256
_REFUSALS = {
    409: "a transaction is not open, or not this producer's any more; or another query has written the last epoch",
    412: "this cannot be a sink's name",
    501: "this broker has no transactions",
}


class EpochTransaction(Struct, rename="camel"):
    transactional_id: Annotated[str, Meta(min_length=1, max_length=1024)]
    producer_id: Long
    epoch: Int


class EpochBody(Struct, rename="camel"):
    transactions: Annotated[list[EpochTransaction], Meta(max_length=_MAX_TRANSACTIONS)]
    #: The query that writes the epoch, by the id of its checkpoint. The broker refuses an epoch of another query
    #: than that of the last epoch. Empty: unknown, and not checked.
    query: Annotated[str, Meta(max_length=_MAX_QUERY)] = ""
    #: The query from which this one takes over the sink.
    instead_of: Annotated[str, Meta(max_length=_MAX_QUERY)] = ""


class EpochAnswer(Struct):
    #: False: the sink had written this epoch before, and nothing was done.
    committed: bool
    #: The last epoch that the sink has written.
    epoch: int


class SinkBody(Struct):
    #: The last epoch that the sink has written; -1 if none.
    epoch: int


class Sinks:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                _BASE,
                "The last epoch that a sink has written.",
                self._get,
                answer=SinkBody,
                refusals=_REFUSALS,
                tag=_TAG,
            ),
            Route(
                "DELETE", _BASE, "Delete the state of an unused sink.", self._forget, refusals=_REFUSALS, tag=_TAG
            ),
            Route(
                "POST",
                f"{_BASE}/epochs/{{epoch}}",
                "Commit an epoch: all of its transactions, once.",
                self._commit,
                body=EpochBody,
                answer=EpochAnswer,
                refusals=_REFUSALS,
                tag=_TAG,
            ),
        ]

    def _transactions(self, call: Call) -> Transactions:
        found = self._context.transactions
        if found is None:
            raise RefusedError(501, "this broker has no transactions")
        return found.of(call.role)

    async def _get(self, call: Call) -> SinkBody:
        return SinkBody(await self._transactions(call).sink_epoch(call.path["sink"]))

    async def _forget(self, call: Call) -> None:
        await self._transactions(call).forget_sink(call.path["sink"])

    async def _commit(self, call: Call) -> EpochAnswer:
        sink, epoch = call.path["sink"], call.path["epoch"]
        wanted = [
            (one.transactional_id, ProducerIdentity(one.producer_id, one.epoch)) for one in call.body.transactions
        ]
        transactions = self._transactions(call)
        committed = await transactions.commit_together(
            sink, epoch, wanted, query=call.body.query, instead_of=call.body.instead_of
        )
        return EpochAnswer(committed, await transactions.sink_epoch(sink))
