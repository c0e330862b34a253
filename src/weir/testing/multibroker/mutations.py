"""Promises of several brokers broken on purpose (see `weir.testing.mutation`)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from weir.broker.parts.routed import RoutedParts
from weir.model.bundles import BundleClaim
from weir.model.errors import WeirError
from weir.model.positions import CommittedOffset
from weir.model.topics import TopicName
from weir.model.transactions import TransactionEnd
from weir.testing import log_checkers as logs
from weir.testing.kafka.checkers import groups, transactions
from weir.testing.kafka.mutations.entered import MEMBERS, WRITERS
from weir.testing.multibroker.checkers import an_epoch_has_one_leader
from weir.testing.mutation import Mutations, often
from weir.testing.storage.plan import Fault

MULTIBROKER_MUTATIONS = Mutations()
_mutation = MULTIBROKER_MUTATIONS.add

_CRASHES = often(Fault.CRASH_CLIENT)
_SPREAD = {"brokers": 3, "in_parts": 4, "out_parts": 2}


@_mutation("epoch-stands-still", an_epoch_has_one_leader, storage=_CRASHES, **{**WRITERS, **_SPREAD, "readers": 4})
def _epoch_stands_still() -> Iterator[None]:
    """Who takes over what nobody has any more goes on under the epoch of who had it before."""

    def same_epoch(broker_id: str = "", instance: str = "", epoch: int = 0, **more: Any) -> BundleClaim:
        return BundleClaim(broker_id, instance, max(epoch - 1, 0), **more)

    with patch("weir.broker.bundles.ownership.BundleClaim", same_epoch):
        yield


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
