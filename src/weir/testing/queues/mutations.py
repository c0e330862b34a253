"""Promises of queues broken on purpose: each mutation patches one seam of the product (see `mutation`)."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from weir.broker.api.queues import QueueMessages
from weir.broker.dead_letters import outbox
from weir.broker.dead_letters.outbox import DeadLetters
from weir.broker.queues.durable_queue import DurableQueue
from weir.broker.queues.queue_limits import QueueLimitEnforcer
from weir.broker.subscriptions.per_message import PerMessage
from weir.broker.subscriptions.subscription import Subscription
from weir.model.ledger import Quorum
from weir.stream.settings import StreamSettings
from weir.testing.mutation import Mutations, often
from weir.testing.queues import checkers
from weir.testing.storage.plan import Fault
from weir.wire.amqp.dead_letter import Reason

QUEUE_MUTATIONS = Mutations()
_mutation = QUEUE_MUTATIONS.add

_SLOW_STATE = StreamSettings(quorum=Quorum(3, 2, 2), state_pause_s=2.0, retry_pause_s=0.05)
_CRASHES = {"storage": often(Fault.CRASH_CLIENT), "streams": _SLOW_STATE, "moves": False}


@_mutation("letters-without-stamps", checkers.a_dead_letter_exists_once, **_CRASHES, rejects=0.9, messages=80)
def _letters_without_stamps() -> Iterator[None]:
    """A parcel that is sent again is not known where it arrives."""
    made = outbox._messages

    def plain(letters: Any, encoded: Any, stamp: Any) -> QueueMessages:
        return made(letters, encoded, None)

    with patch.object(outbox, "_messages", plain):
        yield


@_mutation("parcels-not-written", checkers.a_message_has_one_fate, **_CRASHES, rejects=0.5, messages=80)
def _parcels_not_written() -> Iterator[None]:
    """Which messages have died is known in memory alone."""
    run = DeadLetters.__init__

    def forgetful(self: DeadLetters, *args: Any, store: Any, **more: Any) -> None:
        run(self, *args, store=None, **more)

    with patch.object(DeadLetters, "__init__", forgetful):
        yield


@_mutation("acknowledged-before-sent", checkers.confirmed_is_never_lost, **_CRASHES, rejects=0.9, messages=80)
def _acknowledged_before_sent() -> Iterator[None]:
    """A message is acknowledged as soon as its letter is on its way."""
    deliver, arrived = DeadLetters._deliver, outbox._all_in

    async def too_early(self: DeadLetters, letters: Any, parcel: Any, stamp: Any) -> Any:
        if stamp is not None:
            self._arrived(arrived(parcel.targets))
            if self._store is not None:
                await self._store.flush()
            await self._clock.sleep(0.5)
        return await deliver(self, letters, parcel, stamp)

    with patch.object(DeadLetters, "_deliver", too_early):
        yield


@_mutation("acknowledged-in-memory", checkers.acknowledged_comes_no_more, **_CRASHES, rejects=0.0, messages=80)
def _acknowledged_in_memory() -> Iterator[None]:
    """An acknowledgement counts as durable at once."""

    async def at_once(self: Subscription) -> None:
        pass

    with patch.object(Subscription, "persisted", at_once):
        yield


@_mutation("requeued-behind", checkers.order_is_kept, brokers=1, requeues=0.5, rejects=0.1, messages=80)
def _requeued_behind() -> Iterator[None]:
    """What is next in the log comes before what was given back."""
    serve = PerMessage._serve

    def log_first(self: PerMessage, who: Any, credit_of: list[int]) -> bool:
        return self._from_log(who, credit_of) or serve(self, who, credit_of)

    with patch.object(PerMessage, "_serve", log_first):
        yield


@_mutation("given-back-is-given-up", checkers.nothing_comes_from_nowhere, requeues=0.5, rejects=0.1)
def _given_back_is_given_up() -> Iterator[None]:
    """What a consumer gives back is a dead letter."""

    def gone(self: QueueLimitEnforcer, offsets: Any, counts: Any) -> Any:
        self._take(offsets, Reason.DELIVERY_LIMIT)
        return offsets

    with patch.object(QueueLimitEnforcer, "returned", gone):
        yield


@_mutation("stored-twice", checkers.a_message_is_there_once, rejects=0.0, requeues=0.9, messages=80)
def _stored_twice() -> Iterator[None]:
    """What is published is in the queue two times."""
    send = DurableQueue._send

    def twice(self: DurableQueue, producer: Any, messages: QueueMessages) -> Any:
        for receipt in send(self, producer, messages):
            receipt.add_done_callback(lambda done: done.cancelled() or done.exception())
        return send(self, producer, messages)

    with patch.object(DurableQueue, "_send", twice):
        yield


@_mutation("stuck", checkers.all_is_available, **_CRASHES)
def _stuck() -> Iterator[None]:
    """Nobody gets anything from a queue whose broker has changed."""
    subscribe = Subscription.subscribe

    async def refused(self: Subscription, request: Any, share: Any = None) -> Any:
        if request.consumer_name == "" and self.cursor.mark_delete >= 0:
            self._gone = True
        return await subscribe(self, request, share)

    with patch.object(Subscription, "subscribe", refused):
        yield
