"""What coordinators of groups and transactions do to partitions, as one interface, wherever these are."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from weir.model.errors import WeirError
from weir.model.positions import CommittedOffset
from weir.model.topics import TopicName
from weir.model.transactions import TransactionEnd
from weir.wire.peer.coordinators import DropRule


class Parts(Protocol):
    """What it answers is durable. Of several partitions each has its own result."""

    async def end_transaction(self, part: TopicName, end: TransactionEnd) -> None:
        """Store the marker of a decided transaction; nothing if it has nothing open there. Fine to ask again."""

    async def place(
        self,
        group: str,
        positions: Mapping[TopicName, CommittedOffset],
        *,
        order: int = 0,
        check: Callable[[], None] | None = None,
    ) -> dict[TopicName, WeirError | None]:
        """Place the group on each partition, back or on. `order`: of all placings of the group, which grows; one
        that comes late is left out, and one by a coordinator that was replaced is a NotOwnerError. `check` is
        called right before anything is placed or sent off, and may raise."""

    async def fetch(self, group: str, parts: Iterable[TopicName]) -> dict[TopicName, CommittedOffset | WeirError]:
        """Where the group is; partitions that it has no position on, or that there are not, are missing."""

    async def drop(
        self,
        group: str,
        parts: Iterable[TopicName],
        rule: DropRule,
        *,
        before_ms: int = 0,
        still: Callable[[TopicName], bool] = lambda part: True,
    ) -> dict[TopicName, int | WeirError]:
        """Forget positions: -1 for one that is gone, else when what stays was committed. `still` is asked of each
        partition right before."""
