"""Promises of half, delayed and grouped messages broken on purpose, each in one seam of the product."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

from pyroaring import BitMap64

from weir.broker.prepared.decisions import Decisions
from weir.broker.prepared.prepared_messages import PreparedMessages
from weir.broker.publish import publisher
from weir.broker.subscriptions.ready_messages import MessageGroups
from weir.model.batch import Batch, HeldId
from weir.model.ledger import Quorum
from weir.stream.holding import area
from weir.stream.holding.area import HoldingArea
from weir.stream.holding.ledger import HeldLedger
from weir.stream.settings import StreamSettings
from weir.testing.half import checkers
from weir.testing.mutation import Mutations, often
from weir.testing.storage.plan import Fault

HALF_MUTATIONS = Mutations()
_mutation = HALF_MUTATIONS.add

_SLOW_STATE = StreamSettings(quorum=Quorum(3, 2, 2), state_pause_s=2.0, retry_pause_s=0.05)
_CRASHES = {"storage": often(Fault.CRASH_CLIENT), "streams": _SLOW_STATE}
_HALF = {**_CRASHES, "kinds": ("half",), "gives_up": False, "messages": 40}
_GROUPS = {**_CRASHES, "kinds": ("groups",), "messages": 40}


@_mutation("committed-when-prepared", checkers.a_half_message_is_not_seen_early, **_HALF)
def _committed_when_prepared() -> Iterator[None]:
    """A half message has a moment, and it is over."""
    with patch.object(publisher, "FOREVER_MS", 1):
        yield


@_mutation("undecided-forgotten", checkers.a_half_message_is_never_lost, **_HALF)
def _undecided_forgotten() -> Iterator[None]:
    """What a former broker left is not looked for."""

    async def blind(self: PreparedMessages, area: HoldingArea | None) -> None:
        self._known.set()

    with patch.object(PreparedMessages, "_look_through", blind):
        yield


@_mutation("decisions-in-memory", checkers.a_half_message_is_never_lost, **_HALF)
def _decisions_in_memory() -> Iterator[None]:
    """How a message was decided is not written down."""

    def forgetful(self: Decisions, ledger: object) -> None:
        pass

    with patch.object(Decisions, "_mark", forgetful):
        yield


@_mutation("rolled-back-in-memory", checkers.a_half_message_is_decided_once, **_HALF)
def _rolled_back_in_memory() -> Iterator[None]:
    """A roll-back is answered before the state is written."""

    async def at_once(self: HoldingArea, held: HeldId, cancelled: Callable[[], None] = lambda: None) -> None:
        _, batch = await self.get(held)
        ledger = self._free(held)
        ledger.finish(held.entry, batch.count)
        cancelled()
        self._shelf.touch(ledger)

    with patch.object(HoldingArea, "cancel", at_once):
        yield


@_mutation("release-not-found-again", checkers.a_half_message_is_decided_once, **_HALF)
def _release_not_found_again() -> Iterator[None]:
    """What the log says of releases is not read when a topic is opened."""

    async def none(stream: object, offset: int) -> AsyncGenerator[tuple[HeldId, Batch], None]:
        found: list[tuple[HeldId, Batch]] = []
        for one in found:
            yield one

    with patch.object(area, "released_since", none):
        yield


@_mutation("recalled-while-released", checkers.a_recall_or_a_release, kinds=("recall",), cancels=0.9, messages=40)
def _recalled_while_released() -> Iterator[None]:
    """What is on its way into the log can be cancelled."""

    def free(self: HoldingArea, held: HeldId) -> HeldLedger:
        ledger = self._shelf.with_id(held.ledger)
        if ledger is None or held.entry in ledger.done:
            raise area._not_held(held)
        return ledger

    with patch.object(HoldingArea, "_free", free):
        yield


@_mutation("groups-not-looked-at", checkers.a_group_is_in_order, **_GROUPS)
def _groups_not_looked_at() -> Iterator[None]:
    """Messages are delivered as if they had no group."""
    note = MessageGroups.note

    def plain(self: MessageGroups, base: int, indices: Sequence[int], keys: object, out: BitMap64) -> None:
        note(self, base, indices, None, out)

    with patch.object(MessageGroups, "note", plain):
        yield


@_mutation("failed-lets-others-pass", checkers.a_group_is_in_order, **_GROUPS, fails=0.5)
def _failed_lets_others_pass() -> Iterator[None]:
    """What comes back no longer holds up its group."""
    add = MessageGroups.add

    def passing(self: MessageGroups, offsets: BitMap64) -> None:
        for offset in offsets:
            group = self._by_first.get(offset)
            if group is not None:
                self._by_first.pop(offset)
                group.first.discard(offset)
                self._go_on(group)
        add(self, offsets)

    with patch.object(MessageGroups, "add", passing):
        yield


@_mutation("group-stands-still", checkers.a_group_goes_on, **_GROUPS)
def _group_stands_still() -> Iterator[None]:
    """What waits behind a message is not ready when that is done with."""

    def stuck(self: MessageGroups, group: Any) -> bool:
        return False

    with patch.object(MessageGroups, "_go_on", stuck):
        yield


@_mutation("stuck", checkers.all_is_available, **_HALF)
def _stuck() -> Iterator[None]:
    """Nobody is ever told which half messages there are."""

    async def never(self: PreparedMessages, area: HoldingArea | None) -> None:
        await self._clock.sleep(3600)

    with patch.object(PreparedMessages, "_look_through", never):
        yield
