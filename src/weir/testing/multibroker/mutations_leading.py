"""Promises of who leads what, broken on purpose (see `weir.testing.mutation`)."""

from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

from weir.broker.cluster import ownership
from weir.broker.cluster.bundle_handover import BundleMoves, Splitting
from weir.broker.cluster.ownership import BundleOwnership, OwnedBundle
from weir.broker.topics.lifecycle import GrowthListeners, PassOn
from weir.broker.topics.topic import BrokerTopic
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.produce import producers
from weir.meta import keys
from weir.meta.local import LocalMeta
from weir.model.cluster import BundleClaim, BundleName
from weir.model.errors import StreamClosedError, TopicClosedError, WeirError
from weir.stream import chain
from weir.stream.appender import Appender
from weir.testing import log_checkers as logs
from weir.testing.kafka.mutations.entered import NOBODY, WRITERS
from weir.testing.multibroker.checkers import (
    an_epoch_has_one_leader,
    epochs_grow_along_the_log,
    epochs_never_go_back,
    only_the_leader_acknowledges,
)
from weir.testing.mutation import Mutations, often
from weir.testing.storage.mutations import recovery_without_fencing
from weir.testing.storage.plan import Fault

LEADING_MUTATIONS = Mutations()
_mutation = LEADING_MUTATIONS.add

#: Nothing is slow but by its fault.
QUICK = {"bookies": 3, "meta_delay_s": 0.002, "sync_s": 0.0005, "link_s": 0.002}
#: Bundles change hands all the time.
MOVES: dict[str, Any] = {"moves": True, "splits": 0.0, "move_every_s": 0.15}
_SPLITS = {**MOVES, "splits": 0.5}
SPREAD: dict[str, Any] = {"brokers": 3, "in_parts": 4, "out_parts": 2, "follows": False}
_PRODUCERS = {**NOBODY, **SPREAD, "plain": 3, "idempotent": 2, "readers": 3, "messages": 150}


def quick(*faults: Fault, duration_s: float = 4.0) -> dict[str, Any]:
    return {**often(*faults, duration_s=duration_s), **QUICK}


# --- two owners at once -----------------------------------------------------------------------------------------

_mutation(
    "no-fencing",
    logs.acknowledged_is_stored,
    storage=quick(Fault.EARLY_LEASES, Fault.LATE_WATCHES),
    **_PRODUCERS,
)(recovery_without_fencing)


@_mutation("handed-over-before-closed", only_the_leader_acknowledges, storage=quick(), **MOVES, **_PRODUCERS)
def _handed_over_before_closed() -> Iterator[None]:
    """A bundle is passed on before its topics are closed, and its next owner takes their ledgers for closed."""

    async def nothing(self: BundleMoves, held: OwnedBundle, reason: str, to: str) -> None:
        held.closing = False

    def forget_later(self: BundleOwnership, held: OwnedBundle) -> None:
        self.clock.call_later(0.3, partial(forget, self, held))

    forget = BundleOwnership.forget
    trusted = recovery_without_fencing()
    next(trusted)
    try:
        with (
            patch.object(BundleMoves, "_put_down", nothing),
            patch.object(BundleOwnership, "forget", forget_later),
        ):
            yield
    finally:
        next(trusted, None)


@_mutation("left-before-its-end", logs.acknowledged_is_stored, storage=quick(), **MOVES, **_PRODUCERS)
def _left_before_its_end() -> Iterator[None]:
    """The next broker is told how a topic was left while messages are on their way to its ledger."""

    async def at_once(self: Appender, reason: WeirError) -> bool:
        return self._writer is not None and self._writer.failure is None and not self._turnover

    with patch.object(Appender, "end", at_once):
        yield


@_mutation("acknowledged-when-given-away", logs.acknowledged_is_stored, storage=quick(), **MOVES, **_PRODUCERS)
def _acknowledged_when_given_away() -> Iterator[None]:
    """What comes while a topic is closed, to be given away, is acknowledged, and nobody stores it any more."""
    usual = producers.tell_refusal

    def as_if_stored(session: Any, part: Any, failure: BaseException, **more: Any) -> None:
        usual(session, part, failure, **more)
        if isinstance(failure, TopicClosedError | StreamClosedError):
            part.error_code = Code.NONE

    with patch.object(producers, "tell_refusal", as_if_stored):
        yield


@_mutation(
    "claimed-without-compare",
    epochs_never_go_back,
    storage=quick(Fault.META_LEADER, Fault.EARLY_LEASES),
    **MOVES,
    **_PRODUCERS,
)
def _claimed_without_compare() -> Iterator[None]:
    """Who takes a bundle, or passes it on, does not look whether another has taken it meanwhile."""
    put = LocalMeta.put

    async def regardless(self: LocalMeta, key: str, value: bytes, *, expect: Any = None, lease: Any = None) -> int:
        claims = key.startswith(keys.CLAIMS)
        return await put(self, key, value, expect=None if claims else expect, lease=lease)

    with patch.object(LocalMeta, "put", regardless):
        yield


# --- epochs -----------------------------------------------------------------------------------------------------


@_mutation(
    "epoch-stands-still",
    an_epoch_has_one_leader,
    storage=often(Fault.CRASH_CLIENT),
    **{**WRITERS, **SPREAD, "readers": 4},
)
def _epoch_stands_still() -> Iterator[None]:
    """Who takes over what nobody has any more goes on under the epoch of who had it before."""

    def same_epoch(broker_id: str = "", instance: str = "", epoch: int = 0, **more: Any) -> BundleClaim:
        return BundleClaim(broker_id, instance, max(epoch - 1, 0), **more)

    with patch.object(ownership, "BundleClaim", same_epoch):
        yield


@_mutation(
    "epoch-begins-anew",
    epochs_never_go_back,
    epochs_grow_along_the_log,
    storage=quick(Fault.EARLY_LEASES, Fault.CRASH_CLIENT),
    **MOVES,
    **_PRODUCERS,
)
def _epoch_begins_anew() -> Iterator[None]:
    """Whoever takes a bundle that nobody has counts its epochs from the beginning, and its ledgers go by that."""

    def anew(owner: str, instance: str, epoch: int) -> BundleClaim:
        return BundleClaim(owner, instance, 0)

    with (
        patch.object(ownership, "BundleClaim", anew),
        patch.object(chain, "check", lambda *_: None),
        patch.object(chain, "max", lambda mine, former: mine, create=True),
    ):
        yield


@_mutation("half-not-claimed", epochs_never_go_back, storage=quick(), **_SPLITS, **_PRODUCERS)
def _half_not_claimed() -> Iterator[None]:
    """A split claims one half of the bundle only: the other is whoever's, as if nobody had ever had it."""
    claim = Splitting._claim

    async def first_only(self: Splitting, half: BundleName, epoch: int) -> BundleClaim:
        if half.low % 2**30 == 0:
            return await claim(self, half, epoch)
        return BundleClaim()

    with patch.object(Splitting, "_claim", first_only):
        yield


# --- who is told ------------------------------------------------------------------------------------------------


@_mutation(
    "moved-not-told",
    logs.all_is_available_after_healing,
    storage=quick(),
    **MOVES,
    **{**_PRODUCERS, "follows": True},
)
def _moved_not_told() -> Iterator[None]:
    """A fetch session is not told of a partition that this broker leads no longer."""
    close = BrokerTopic.close

    async def silent(self: BrokerTopic, reason: str = "", pass_on: PassOn | None = None) -> None:
        self._growth = GrowthListeners()
        await close(self, reason, pass_on)

    with patch.object(BrokerTopic, "close", silent):
        yield
