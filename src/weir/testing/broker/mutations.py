"""Promises of brokers broken on purpose: each mutation patches one seam of the product (see `mutations`)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from weir.broker.api.topics import Position
from weir.broker.cluster import ownership
from weir.broker.cluster.bundle_handover import Splitting
from weir.broker.publish.deduplication import Deduplication
from weir.broker.publish.publish_order import PublishOrder, ReceiptOrder
from weir.broker.settings import BrokerSettings
from weir.broker.subscriptions.key_shared import KeyShared
from weir.broker.subscriptions.subscription import Subscription
from weir.broker.topics.topic import BrokerTopic
from weir.gateway.pulsar.acknowledgments import Acking, Unacked
from weir.ledger.client import LedgerClient
from weir.model.cluster import BundleClaim, BundleName
from weir.model.ledger import Quorum
from weir.stream import appender, chain
from weir.stream.cursor import Cursor
from weir.stream.holding.area import HoldingArea
from weir.stream.holding.releaser import Releaser, Releases
from weir.stream.settings import StreamSettings
from weir.testing import log_checkers as logs
from weir.testing.broker import checkers
from weir.testing.log_mutations import receipt_before_stored, seen_before_stored
from weir.testing.mutation import Mutations, often
from weir.testing.storage.plan import Fault
from weir.wire.pulsar.fast_frames import Receipts

BROKER_MUTATIONS = Mutations()
_mutation = BROKER_MUTATIONS.add


def _often(*faults: Fault) -> dict[str, Any]:
    return often(*faults, duration_s=7.0)


#: Only the log and what is plain, so that a mistake there is not lost among others.
_PLAIN: dict[str, Any] = {"delayed": 0.0, "cancelled": 0.0, "batches": False, "seeks": False}
_SLOW_STATE = StreamSettings(quorum=Quorum(3, 2, 2), state_pause_s=5.0, retry_pause_s=0.05, roll_entries=20)
_QUICK_STATE = replace(_SLOW_STATE, state_pause_s=0.05)


# --- the log --------------------------------------------------------------------------------------------------


@_mutation(
    "ids-go-back",
    checkers.places_are_dense,
    storage=_often(Fault.LEASES, Fault.PAUSE),
    streams=replace(_QUICK_STATE, roll_entries=4),
    moves=True,
    messages=60,
    **_PLAIN,
)
def _ids_go_back() -> Iterator[None]:
    """A stream's new ledger has any id that is free, also one below the ids before it."""
    # The appender's own check would find it first (tests/stream/test_ledger_ids.py): it is off, so that the
    # checker shows that it would see what clients see.

    async def any_id(self: LedgerClient, above: Any) -> Any:
        return await self._ids.take()

    with patch.object(LedgerClient, "_next_id", any_id), patch.object(appender, "check", lambda *_: None):
        yield


_mutation(
    "seen-before-stored",
    logs.what_was_seen_stays,
    storage={**_often(Fault.CRASH_CLIENT, Fault.CRASH_BOOKIE), "sync_s": 0.05},
    subscriptions=("exclusive", "shared"),
    **_PLAIN,
)(seen_before_stored)


_mutation(
    "receipt-before-stored",
    logs.acknowledged_is_stored,
    logs.producers_order_is_kept,
    storage=_often(Fault.CRASH_CLIENT, Fault.CRASH_BOOKIE),
    **_PLAIN,
)(receipt_before_stored)


@_mutation("receipt-elsewhere", logs.receipts_say_where, **_PLAIN)
def _receipt_elsewhere() -> Iterator[None]:
    """A receipt names the entry after the one where the message is."""
    frame = Receipts.frame

    def further(self: Receipts, sequence: int, highest: int, ledger: int, entry: int) -> bytes:
        return frame(self, sequence, highest, ledger, entry + 1 if entry >= 0 else entry)

    with patch.object(Receipts, "frame", further):
        yield


@_mutation(
    "receipts-as-they-end",
    checkers.receipts_are_in_order,
    deduplication=False,
    delayed=0.5,
    cancelled=0.0,
    batches=False,
    seeks=False,
    messages=60,
)
def _receipts_as_they_end() -> Iterator[None]:
    """A batch has its receipt as soon as it is stored, held or refused, whatever was sent before it."""
    with patch.object(ReceiptOrder, "behind", lambda self, receipt: receipt):
        yield


# --- deduplication --------------------------------------------------------------------------------------------


@_mutation(
    "snapshot-without-tail",
    logs.stored_once,
    storage=_often(Fault.CRASH_CLIENT, Fault.LOST_CONNECTIONS),
    deduplication=True,
    broker=BrokerSettings(dedup_snapshot_every=10, maintenance_s=1.0, sweep_s=0.3),
    **_PLAIN,
)
def _snapshot_without_tail() -> Iterator[None]:
    """What was stored after the last snapshot is not read when the topic is opened."""

    async def skip(self: Deduplication, log: Any, now_ms: int) -> None:
        self.known_to = max(self.known_to, log.end_offset)

    with patch.object(Deduplication, "catch_up", skip):
        yield


@_mutation(
    "two-ways-at-once",
    logs.acknowledged_is_stored,
    storage=_often(Fault.META_OUTAGE, Fault.STUCK_DISK),
    deduplication=True,
    moves=True,
    delayed=0.5,
    cancelled=0.0,
    batches=False,
    seeks=False,
    messages=60,
)
def _two_ways_at_once() -> Iterator[None]:
    """What is to be held, and what is not, are stored side by side."""

    def now(self: PublishOrder, producer: str, waiting: Any, before: Any) -> None:
        waiting.send()

    with patch.object(PublishOrder, "enter", now):
        yield


@_mutation("last-id-too-far", logs.all_is_available_after_healing, **_PLAIN)
def _last_id_too_far() -> Iterator[None]:
    """The last message of a topic is told to be where the next one will be."""
    last_position = BrokerTopic.last_position

    async def next_one(self: BrokerTopic) -> Position:
        last = await last_position(self)
        return replace(last, entry=last.entry + 1)

    with patch.object(BrokerTopic, "last_position", next_one):
        yield


# --- subscriptions --------------------------------------------------------------------------------------------


@_mutation(
    "ack-not-persisted",
    checkers.acknowledged_comes_no_more,
    storage=_often(Fault.CRASH_CLIENT),
    streams=_SLOW_STATE,
    **_PLAIN,
)
def _ack_not_persisted() -> Iterator[None]:
    """An acknowledgement is answered before the cursor is written."""

    async def at_once(self: Subscription) -> None:
        return

    with patch.object(Subscription, "persisted", at_once):
        yield


@_mutation(
    "seek-not-persisted",
    checkers.seeks_are_kept,
    storage=_often(Fault.CRASH_CLIENT),
    streams=_SLOW_STATE,
    delayed=0.0,
    batches=False,
    seeks=True,
    subscriptions=("exclusive", "shared"),
)
def _seek_not_persisted() -> Iterator[None]:
    """A seek moves the cursor in memory and forgets to mark it as changed."""
    seek = Subscription.seek

    async def forgetful(self: Subscription, offset: int) -> None:
        self._note = lambda runs=None: None  # type: ignore[method-assign]
        try:
            await seek(self, offset)
        finally:
            del self._note

    with patch.object(Subscription, "seek", forgetful):
        yield


@_mutation(
    "cursor-without-holes",
    checkers.acknowledged_comes_no_more,
    storage=_often(Fault.CRASH_CLIENT),
    subscriptions=("shared", "exclusive"),
    streams=_QUICK_STATE,
    **_PLAIN,
)
def _cursor_without_holes() -> Iterator[None]:
    """A cursor is read back without what is acknowledged above its mark."""
    from_bytes = Cursor.from_bytes

    def bare(data: bytes) -> Cursor:
        return Cursor(from_bytes(data).mark_delete)

    with patch.object(Cursor, "from_bytes", bare):
        yield


@_mutation(
    "one-too-many",
    checkers.everything_is_delivered,
    checkers.deliveries_are_in_order,
    subscriptions=("exclusive", "failover"),
    **_PLAIN,
)
def _one_too_many() -> Iterator[None]:
    """A cumulative acknowledgement covers the next message too."""
    ack_up_to = Subscription.ack_up_to

    def further(self: Subscription, consumer: Any, offset: int) -> None:
        ack_up_to(self, consumer, offset + 1 if consumer is not None else offset)

    with patch.object(Subscription, "ack_up_to", further):
        yield


@_mutation(
    "whole-batch",
    checkers.everything_is_delivered,
    subscriptions=("shared", "exclusive"),
    batches=True,
    delayed=0.0,
    seeks=False,
)
def _whole_batch() -> Iterator[None]:
    """An acknowledgement of some messages of a batch counts for all of it."""
    ack = Unacked.ack

    def everything(self: Unacked, place: Any, unacked: int = 0) -> Any:
        return ack(self, place, 0)

    with patch.object(Unacked, "ack", everything):
        yield


@_mutation(
    "key-taken-over",
    checkers.one_holder_at_a_time,
    subscriptions=("key-shared",),
    consumers=3,
    keys=3,
    messages=60,
    **_PLAIN,
)
def _key_taken_over() -> Iterator[None]:
    """A consumer that comes gets its keys at once, although another still has messages of them."""
    with patch.object(KeyShared, "_is_held_elsewhere", lambda self, key_hash, owner: False):
        yield


@_mutation(
    "answered-before-applied",
    checkers.acknowledged_comes_no_more,
    storage=_often(Fault.LOST_CONNECTIONS),
    seeks=False,
    consumers=1,
)
def _answered_before_applied() -> Iterator[None]:
    """The acknowledgement of something that an earlier connection delivered is answered before it is looked up."""

    async def at_once(self: Acking) -> None:
        return

    with patch.object(Acking, "_applied", at_once):
        yield


# --- the holding area -----------------------------------------------------------------------------------------


@_mutation(
    "released-early", logs.delays_are_kept, delayed=0.5, cancelled=0.0, storage=_often(Fault.LOST_CONNECTIONS)
)
def _released_early() -> Iterator[None]:
    """The holding area thinks that it is two seconds later."""
    take = Releaser._take

    def hasty(self: Releaser) -> Any:
        clock = self._clock
        self._clock = _Ahead(clock)
        try:
            return take(self)
        finally:
            self._clock = clock

    with patch.object(Releaser, "_take", hasty):
        yield


@_mutation(
    "done-before-appended",
    logs.acknowledged_is_stored,
    delayed=0.5,
    cancelled=0.0,
    deduplication=False,
    moves=True,
    storage=_often(Fault.STUCK_DISK, Fault.CRASH_CLIENT, Fault.CRASH_BOOKIE),
    streams=_QUICK_STATE,
)
def _done_before_appended() -> Iterator[None]:
    """A held message counts as released when its append begins."""
    append = Releases.append

    def hasty(self: Releases, release: Any) -> None:
        release.ledger.finish(release.entry, release.batch.count)
        append(self, release)

    with patch.object(Releases, "append", hasty):
        yield


@_mutation("cancel-forgotten", checkers.cancelled_never_comes, delayed=0.6, cancelled=0.6, batches=False)
def _cancel_forgotten() -> Iterator[None]:
    """A cancellation is answered, and nothing is cancelled."""

    async def look_only(self: HoldingArea, held: Any) -> None:
        await self.get(held)

    with patch.object(HoldingArea, "cancel", look_only):
        yield


# --- who leads ------------------------------------------------------------------------------------------------


@_mutation(
    "epoch-begins-anew",
    checkers.epochs_never_go_back,
    storage=_often(Fault.CRASH_CLIENT, Fault.LEASES),
    moves=True,
    **_PLAIN,
)
def _epoch_begins_anew() -> Iterator[None]:
    """Whoever takes a bundle that nobody has counts its epochs from the beginning."""

    def anew(owner: str, instance: str, epoch: int) -> BundleClaim:
        return BundleClaim(owner, instance, 0)

    with patch.object(ownership, "BundleClaim", anew), patch.object(chain, "check", lambda *_: None):
        yield


@_mutation("epoch-lost-in-a-split", checkers.epochs_never_go_back, moves=True, splits=0.5, **_PLAIN)
def _epoch_lost_in_a_split() -> Iterator[None]:
    """The halves of a bundle begin with epochs of their own."""
    claim = Splitting._claim

    async def anew(self: Splitting, half: BundleName, epoch: int) -> BundleClaim:
        return await claim(self, half, 0)

    with patch.object(Splitting, "_claim", anew):
        yield


class _Ahead:
    """A clock that is two seconds ahead."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock

    def wall_ms(self) -> int:
        return int(self._clock.wall_ms()) + 2000

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)
