"""Promises to Kafka's clients broken on purpose: each patches one seam of the product (see `mutations`)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from weir.broker.api.producers import Receipt
from weir.broker.log import producer_state
from weir.broker.log.producer_state import Pending, ProducerStates
from weir.broker.log.producer_state_manager import ProducerStateManager
from weir.broker.publish.idempotent import IdempotentPublisher
from weir.gateway.kafka.fetch.fetch_sessions import FetchParts
from weir.gateway.kafka.produce.sequence_gaps import Gaps
from weir.model.batch import Batch, Stamp
from weir.model.errors import OutOfOrderSequenceError
from weir.model.transactions import Stored
from weir.testing import log_checkers as logs
from weir.testing.kafka.checkers import log as kafka_logs
from weir.testing.kafka.mutations import contents, epochs, groups, transactions  # noqa: F401 - they enter theirs
from weir.testing.kafka.mutations.entered import (
    CRASHES,
    IDEMPOTENT,
    KAFKA_MUTATIONS,
    LOST,
    QUICK_STATE,
    SLOW_STATE,
    SNAPSHOTS,
    WRITERS,
    mutation,
)
from weir.testing.log_mutations import receipt_before_stored, seen_before_stored
from weir.testing.mutation import often
from weir.testing.storage.plan import Fault

__all__ = ["KAFKA_MUTATIONS"]


# --- the log --------------------------------------------------------------------------------------------------


mutation(
    "seen-before-stored",
    logs.what_was_seen_stays,
    storage={**often(Fault.CRASH_CLIENT, Fault.CRASH_BOOKIE), "sync_s": 0.05},
    **{**IDEMPOTENT, "readers": 4},
)(seen_before_stored)


mutation("receipt-before-stored", logs.acknowledged_is_stored, storage=CRASHES, **IDEMPOTENT)(
    receipt_before_stored
)


@mutation("growth-not-told", logs.all_is_available_after_healing, **{**IDEMPOTENT, "follows": True})
def _growth_not_told() -> Iterator[None]:
    """A fetch session is not told that a partition has grown which it was up to date with."""
    with patch.object(FetchParts, "_grew", lambda self, part: None):
        yield


# --- idempotence ----------------------------------------------------------------------------------------------


@mutation("duplicate-stored", logs.stored_once, storage=LOST, **IDEMPOTENT)
def _duplicate_stored() -> Iterator[None]:
    """A batch that was stored before is stored again."""
    judge = ProducerStates.judge

    def blind(self: ProducerStates, stamp: Stamp, count: int) -> Any:
        judge(self, stamp, count)

    with patch.object(ProducerStates, "judge", blind):
        yield


@mutation(
    "gap-accepted",
    logs.producers_order_is_kept,
    storage=often(Fault.CRASH_BOOKIE, Fault.LOST_CONNECTIONS, Fault.LEASES),
    **IDEMPOTENT,
)
def _gap_accepted() -> Iterator[None]:
    """A batch whose predecessor is missing is stored all the same."""
    judge = ProducerStates.judge

    def tolerant(self: ProducerStates, stamp: Stamp, count: int) -> Any:
        try:
            return judge(self, stamp, count)
        except OutOfOrderSequenceError:
            return None

    with patch.object(ProducerStates, "judge", tolerant), patch.object(Gaps, "check", _accept):
        yield


@mutation(
    "first-batch-missed",
    logs.producers_order_is_kept,
    storage={**often(Fault.LEASES, Fault.META_LOSS, Fault.RESTART_BOOKIE, duration_s=3.0), "fault_every_s": 0.2},
    **{**IDEMPOTENT, "idempotent": 4, "messages": 15, "in_parts": 3},
)
def _first_batch_missed() -> Iterator[None]:
    """Nobody remembers that the first batch of a producer could not be stored."""
    with patch.object(Gaps, "check", _accept):
        yield


def _accept(self: Gaps, key: Any, stamp: Stamp | None, topic: Any = None) -> None:
    """Whatever comes."""


@mutation(
    "only-the-last-batch-known",
    kafka_logs.producers_can_go_on,
    storage=often(Fault.LOST_CONNECTIONS),
    **IDEMPOTENT,
)
def _only_the_last_batch_known() -> Iterator[None]:
    """Only the last batch of a producer is told from a gap when it is sent again."""
    learn = ProducerStates.learn

    def forgetful(self: ProducerStates, batch: Batch) -> None:
        learn(self, batch)
        for known in self._known.values():
            while len(known.stored) > 1:
                known.stored.popleft()

    with patch.object(ProducerStates, "learn", forgetful):
        yield


@mutation("numbers-alone-tell", kafka_logs.numbers_are_used_once, **{**WRITERS, "overwrites": 1.0})
def _numbers_alone_tell() -> Iterator[None]:
    """Whatever has the sequence numbers of a known batch is taken for it, whatever it is and whenever it comes."""
    judge = ProducerStates.judge

    def lenient(self: ProducerStates, stamp: Stamp, count: int) -> Stored | Pending | None:
        return judge(self, replace(stamp, checksum=0), count)

    with patch.object(ProducerStates, "judge", lenient), patch.object(producer_state, "_is_before", _never):
        yield


def _never(sequence: int, marked: int) -> bool:
    return False


@mutation("duplicate-answered-wrongly", logs.receipts_say_where, storage=LOST, **IDEMPOTENT)
def _duplicate_answered_wrongly() -> Iterator[None]:
    """A batch that was stored before is answered with where the log ends."""

    def wrong(self: IdempotentPublisher, offset: int) -> Receipt:
        return Receipt(self._stream.end_offset - 1, (-1, -1), duplicate=True)

    with patch.object(IdempotentPublisher, "_duplicate_of", wrong):
        yield


@mutation(
    "producers-forgotten",
    logs.stored_once,
    storage=often(Fault.LOST_CONNECTIONS, Fault.SLOW_LINK, Fault.CRASH_CLIENT, Fault.RESTART_BOOKIE),
    broker=SNAPSHOTS,
    streams=QUICK_STATE,
    **IDEMPOTENT,
)
def _producers_forgotten() -> Iterator[None]:
    """What a snapshot says of producers is not loaded when the topic is opened."""
    load = ProducerStates.load

    def forget(self: ProducerStates, data: bytes) -> int:
        known_to = load(self, data)
        self._known.clear()
        return known_to

    with patch.object(ProducerStates, "load", forget):
        yield


@mutation("tail-not-read", logs.stored_once, storage=CRASHES, streams=SLOW_STATE, **IDEMPOTENT)
def _tail_not_read() -> Iterator[None]:
    """What was stored after the last snapshot is not looked at when the topic is opened."""

    async def skip(self: ProducerStateManager) -> None:
        self._known_to = self._stream.end_offset

    with patch.object(ProducerStateManager, "catch_up", skip):
        yield
