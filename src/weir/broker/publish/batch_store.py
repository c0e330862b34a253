"""The steps that every batch takes, whichever way it comes, as the parts of a publisher ask for them."""

import asyncio
from typing import Protocol

from weir.broker.api.producers import Outgoing, Receipt
from weir.broker.ports import Holding
from weir.broker.publish.producers import BrokerProducer
from weir.model.batch import Batch, HeldId


class PublishSteps(Protocol):
    """Filled by the publisher, so that limits, meters and failures are the same for each of its parts."""

    holding: Holding | None

    def take_room(self, size: int) -> None:
        """So many bytes of the publish budget for a batch; `append` and `hold` give them back in the end."""

    def give_back(self, size: int) -> None:
        """The room of a batch that is not sent on after all."""

    def count(self, producer: BrokerProducer, outgoing: Outgoing) -> None:
        """Take room for a producer's batch, and count it for meters and the publish rate."""

    def is_to_wait(self, deliver_at_ms: int) -> bool:
        """Whether a batch with this moment is held rather than appended."""

    def append(self, batch: Batch, receipt: "asyncio.Future[Receipt]") -> "asyncio.Future[int]":
        """Into the log, and answer its receipt; answers the offset."""

    def hold(self, batch: Batch, due_ms: int, receipt: "asyncio.Future[Receipt]") -> "asyncio.Future[HeldId]":
        """Into the holding area, and answer its receipt. Only what `is_to_wait` says has to wait."""
