"""Promises of several brokers broken on purpose (see `weir.testing.mutation`)."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from weir.broker.coordination.remote_partition_ops import PartsService, RoutedParts
from weir.broker.log.producer_state_manager import TransactionVerification
from weir.broker.transactions.transaction import Transaction
from weir.broker.transactions.transaction_shards import TransactionShard, TransactionShards
from weir.ledger.reader import LedgerReader
from weir.model.errors import WeirError
from weir.model.ids import EntryId
from weir.model.topics import TopicName
from weir.model.transactions import CommittedOffset, TransactionEnd
from weir.stream import state_log
from weir.testing import log_checkers as logs
from weir.testing.kafka.checkers import groups, transactions
from weir.testing.kafka.mutations.entered import MEMBERS, WRITERS
from weir.testing.multibroker.mutations_leading import LEADING_MUTATIONS, MOVES, SPREAD, quick
from weir.testing.mutation import Mutations, often
from weir.testing.storage.plan import Fault
from weir.wire.peer.calls import Done
from weir.wire.peer.coordinator_calls import EndInPart

MULTIBROKER_MUTATIONS = Mutations(LEADING_MUTATIONS)
_mutation = MULTIBROKER_MUTATIONS.add

_SPREAD = SPREAD


@_mutation("marked-here-alone", logs.all_is_available_after_healing, storage=often(), **{**WRITERS, **_SPREAD})
def _marked_here_alone() -> Iterator[None]:
    """A coordinator takes it for done that partitions of other brokers got their markers."""

    async def here_alone(self: RoutedParts, part: TopicName, end: TransactionEnd) -> None:
        if (await self._broker.holder(part)).here:
            await self._local.end_transaction(part, end)

    with patch.object(RoutedParts, "end_transaction", here_alone):
        yield


@_mutation(
    "committed-elsewhere-only",
    transactions.transactions_are_atomic,
    storage=often(),
    **{**WRITERS, **_SPREAD, "aborts": 0.0},
)
def _committed_elsewhere_only() -> Iterator[None]:
    """What is committed is aborted in the partitions of the broker that coordinates it."""
    usual = RoutedParts.end_transaction

    async def turned_round(self: RoutedParts, part: TopicName, end: TransactionEnd) -> None:
        if end.commit and (await self._broker.holder(part)).here:
            end = replace(end, commit=False)
        await usual(self, part, end)

    with patch.object(RoutedParts, "end_transaction", turned_round):
        yield


@_mutation("position-elsewhere-forgotten", groups.positions_are_kept, storage=often(), **{**MEMBERS, **_SPREAD})
def _position_elsewhere_forgotten() -> Iterator[None]:
    """Positions on partitions of other brokers are acknowledged and placed nowhere."""
    usual = RoutedParts.place

    async def here_alone(
        self: RoutedParts,
        group: str,
        positions: Mapping[TopicName, CommittedOffset],
        *,
        order: int = 0,
        check: Callable[[], None] | None = None,
    ) -> dict[TopicName, WeirError | None]:
        mine = {part: at for part, at in positions.items() if (await self._broker.holder(part)).here}
        return dict.fromkeys(positions, None) | await usual(self, group, mine, order=order, check=check)

    with patch.object(RoutedParts, "place", here_alone):
        yield


# --- transactions and coordinators ------------------------------------------------------------------------------


@_mutation(
    "marker-tried-once",
    logs.all_is_available_after_healing,
    storage=quick(Fault.LOST_CONNECTIONS),
    **{**WRITERS, **_SPREAD, **MOVES, "writers": 3, "messages": 60},
)
def _marker_tried_once() -> Iterator[None]:
    """A coordinator that cannot reach a partition's broker takes the partition for marked."""

    async def once(self: TransactionShard, part: TopicName, transaction: Transaction, *, commit: bool) -> None:
        with suppress(WeirError):
            await self._takes_part.end_transaction(part, self._end_of(transaction, commit=commit))

    with patch.object(TransactionShard, "_mark", once):
        yield


@_mutation(
    "not-verified",
    logs.all_is_available_after_healing,
    storage=quick(Fault.LOST_CONNECTIONS, Fault.SLOW_LINK, Fault.PAUSE),
    **{**WRITERS, **_SPREAD, "writers": 4, "instances": 2, "messages": 80},
)
def _not_verified() -> Iterator[None]:
    """A transaction begins in a partition without a word of its coordinator."""
    with patch.object(TransactionShards, "admit", lambda self, stamp, topic: 1):
        yield


@_mutation(
    "late-marker-taken",
    transactions.transactions_are_atomic,
    storage=quick(),
    **{**WRITERS, **_SPREAD, **MOVES, "writers": 4, "instances": 1, "messages": 150},
)
def _late_marker_taken() -> Iterator[None]:
    """A marker of a coordinator that was replaced ends whatever its producer has open; some markers take long."""
    count = [0]

    async def slow(self: PartsService, request: EndInPart) -> Done:
        count[0] += 1
        await asyncio.sleep(0.6 if count[0] % 3 == 0 else 0)
        return await end(self, request)

    end = PartsService._end
    with (
        patch.object(TransactionVerification, "is_late", lambda self, producer_id, marker_round: False),
        patch.object(PartsService, "_end", slow),
    ):
        yield


@_mutation(
    "log-not-read-to-its-end",
    logs.all_is_available_after_healing,
    storage=quick(Fault.CRASH_CLIENT, Fault.EARLY_LEASES),
    **{**WRITERS, **_SPREAD, **MOVES, "writers": 3, "messages": 80},
)
def _log_not_read_to_its_end() -> Iterator[None]:
    """Who takes a coordinator over leaves out the last thing that was written of it."""
    load = state_log._load

    async def not_the_last(reader: LedgerReader, values: dict[str, bytes]) -> Any:
        class Shorter:
            async def last_confirmed(self) -> EntryId:
                return EntryId(max(0, await reader.last_confirmed() - 1))

            def __getattr__(self, name: str) -> Any:
                return getattr(reader, name)

        return await load(Shorter(), values)  # type: ignore[arg-type]

    with patch.object(state_log, "_load", not_the_last):
        yield
