"""Who balances the cluster, and how much work its brokers have."""

from collections.abc import Sequence
from typing import Protocol

from weir.model.load import BrokerLoad


class Balance(Protocol):
    def leader(self) -> str:
        """The id of the broker that moves and splits bundles, as far as is known here; "" while there is none. The
        loss of it stops balance, never service."""

    @property
    def leading(self) -> bool:
        """Whether that is this broker."""

    async def loads(self) -> Sequence[BrokerLoad]:
        """What every broker that answers says of its work now."""
