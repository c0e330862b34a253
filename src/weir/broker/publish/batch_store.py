"""The publish steps that all publish paths share, as an interface of the publisher for its parts."""

import asyncio
from typing import Protocol

from weir.broker.api.producers import Outgoing, Receipt
from weir.broker.ports import Holding
from weir.broker.publish.producers import BrokerProducer
from weir.model.batch import Batch, HeldId


class PublishSteps(Protocol):
    """The publisher fills it, so that limits, meters and failure handling are the same for all paths."""

    holding: Holding | None

    def take_room(self, size: int) -> None:
        """Reserve bytes of the publish budget for a batch; `append` and `hold` release them when they end."""

    def give_back(self, size: int) -> None:
        """Release the reserved bytes of a batch that is not stored after all."""

    def count(self, producer: BrokerProducer, outgoing: Outgoing) -> None:
        """Reserve bytes for a producer's batch, and count it for meters and the publish rate."""

    def is_to_wait(self, deliver_at_ms: int) -> bool:
        """Whether a batch with this delivery time goes to the holding area instead of the log."""

    def append(self, batch: Batch, receipt: "asyncio.Future[Receipt]") -> "asyncio.Future[int]":
        """Append to the log, and complete the receipt; the result is the offset."""

    def hold(self, batch: Batch, due_ms: int, receipt: "asyncio.Future[Receipt]") -> "asyncio.Future[HeldId]":
        """Put a delayed batch into the holding area, and complete the receipt. Only if `is_to_wait` is true."""
