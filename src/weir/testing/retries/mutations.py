"""Promises of retries broken on purpose: each mutation patches one seam of the product (see `mutation`)."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from weir.broker.api.queues import QueueMessages
from weir.broker.dead_letters import outbox
from weir.broker.dead_letters.outbox import DeadLetters
from weir.broker.subscriptions.subscription import Subscription
from weir.model.ledger import Quorum
from weir.model.retry import RetryPolicy
from weir.stream.settings import StreamSettings
from weir.testing.mutation import Mutations, often
from weir.testing.retries import checkers
from weir.testing.storage.plan import Fault

RETRY_MUTATIONS = Mutations()
_mutation = RETRY_MUTATIONS.add

_SLOW_STATE = StreamSettings(quorum=Quorum(3, 2, 2), state_pause_s=2.0, retry_pause_s=0.05)
_CRASHES = {"storage": often(Fault.CRASH_CLIENT), "streams": _SLOW_STATE, "moves": False}


@_mutation(
    "sent-without-stamps", checkers.a_message_is_there_once, **_CRASHES, fails=0.9, messages=40, redrives=True
)
def _sent_without_stamps() -> Iterator[None]:
    """A parcel that is sent again is not known where it arrives."""
    made = outbox._messages

    def plain(letters: Any, encoded: Any, stamp: Any) -> QueueMessages:
        return made(letters, encoded, None)

    with patch.object(outbox, "_messages", plain):
        yield


@_mutation("parcels-not-written", checkers.a_message_is_there_once, **_CRASHES, fails=0.9, messages=40)
def _parcels_not_written() -> Iterator[None]:
    """Which messages have died is known in memory alone."""
    run = DeadLetters.__init__

    def forgetful(self: DeadLetters, *args: Any, store: Any, **more: Any) -> None:
        run(self, *args, store=None, **more)

    with patch.object(DeadLetters, "__init__", forgetful):
        yield


@_mutation("acknowledged-before-sent", checkers.nothing_is_lost, **_CRASHES, fails=0.9, messages=40)
def _acknowledged_before_sent() -> Iterator[None]:
    """A message is acknowledged as soon as its letter is on its way."""
    deliver, arrived = DeadLetters._deliver, outbox._all_in

    async def too_early(self: DeadLetters, letters: Any, parcel: Any, stamp: Any) -> Any:
        self._arrived(arrived(parcel.targets))
        if self._store is not None:
            await self._store.flush()
        await self._clock.sleep(0.5)
        return await deliver(self, letters, parcel, stamp)

    with patch.object(DeadLetters, "_deliver", too_early):
        yield


@_mutation(
    "acknowledged-in-memory", checkers.acknowledged_is_over, **_CRASHES, fails=0.0, rejects=0.0, messages=40
)
def _acknowledged_in_memory() -> Iterator[None]:
    """An acknowledgement counts as durable at once."""

    async def at_once(self: Subscription) -> None:
        pass

    with patch.object(Subscription, "persisted", at_once):
        yield


@_mutation("given-up-too-early", checkers.only_what_failed_dies, fails=0.9, max_deliveries=4, redrives=False)
def _given_up_too_early() -> Iterator[None]:
    """A message dies one delivery before it may."""
    is_over = RetryPolicy.is_over

    def early(self: RetryPolicy, failures: int) -> bool:
        return is_over(self, failures + 1)

    with patch.object(RetryPolicy, "is_over", early):
        yield


@_mutation("stuck", checkers.all_is_available, **_CRASHES)
def _stuck() -> Iterator[None]:
    """Nobody gets anything from a subscription whose broker has changed."""
    subscribe = Subscription.subscribe

    async def refused(self: Subscription, request: Any, share: Any = None) -> Any:
        if self.cursor.mark_delete >= 0:
            self._gone = True
        return await subscribe(self, request, share)

    with patch.object(Subscription, "subscribe", refused):
        yield
