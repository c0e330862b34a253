"""Held messages while brokers die and streams change hands: each is released once, on time, or not at all.

A whole cluster in simulation: bookies behind a network, brokers that are killed at any moment or are still
running when another takes their stream over. What was answered is written down outside of all nodes.
"""

import contextlib
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest

from weir.model.batch import Batch, BatchFormat, HeldId
from weir.model.errors import NotHeldError, StreamFencedError, WeirError
from weir.model.ledger import Quorum
from weir.model.messages import FOREVER_MS
from weir.runtime.interfaces import Runtime
from weir.stream.context import StreamContext
from weir.stream.holding import area as holding
from weir.stream.holding.area import HoldingArea
from weir.stream.holding.ledger import HeldLedger
from weir.stream.holding.loader import Loader
from weir.stream.log import Stream
from weir.stream.settings import HoldingSettings, StreamSettings
from weir.stream.state_log import StateLog
from weir.stream.tail import TailCache
from weir.testing.storage.cluster import Cluster, sound_cluster
from weir.testing.storage.plan_below import make_holding
from weir.testing.world.world import World, simulate

SEEDS = 60
_CHUNK = 10
#: How late a release may be while a broker runs.
PROMPT_MS = 100
#: How long a broker that has just opened the stream may take to find what its forerunner left.
TAKE_UP_MS = 1000

STREAM_SETTINGS = StreamSettings(
    quorum=Quorum(3, 2, 2), roll_entries=30, state_pause_s=0.3, retry_pause_s=0.05, state_roll_bytes=2000
)


@dataclass
class Fate:
    """What is known of one message, from outside."""

    due_ms: int
    held_ms: int | None = None
    cancelled: bool | None = False  # None: asked for, not answered
    freed: bool = False  # released by hand, or asked for


@dataclass
class Term:
    """A broker's time with the stream."""

    opened_ms: int
    ended_ms: int | None = None


@dataclass
class Outside:
    """What no crash forgets."""

    fates: dict[str, Fate] = field(default_factory=dict)
    terms: list[Term] = field(default_factory=list)
    numbers: int = 0

    def name(self) -> str:
        self.numbers += 1
        return f"m{self.numbers}"


class Broker:
    """Opens the stream, holds messages, cancels and frees some, until it dies or loses the stream."""

    def __init__(self, cluster: Cluster, name: str, outside: Outside, settings: HoldingSettings) -> None:
        self._cluster = cluster
        self._name = name
        self._outside = outside
        self._settings = settings

    async def open(self, runtime: Runtime) -> tuple[Stream, HoldingArea]:
        client = await self._cluster.ledger_client(runtime, self._name)
        context = StreamContext(runtime, client.context.meta, client, TailCache(1 << 20), STREAM_SETTINGS)
        stream = await Stream.open(context, "t", create_missing=True)
        state = await stream.open_state()
        return stream, await HoldingArea.open(context, "t", stream, state, self._settings)

    async def run(self, runtime: Runtime) -> None:
        stream, area = await self.open(runtime)
        self._outside.terms.append(Term(runtime.clock.wall_ms()))
        rng = runtime.rng
        ids: dict[str, HeldId] = {}
        while True:
            await runtime.clock.sleep(rng.uniform(0.0, 0.15))
            roll = rng.random()
            if roll < 0.15 and ids:
                await self._cancel(area, *ids.popitem())
            elif roll < 0.25 and ids:
                await self._free(area, *ids.popitem())
            elif roll < 0.4:
                await stream.append(Batch(0, 1, BatchFormat.PULSAR, 0, b"ordinary"))
            else:
                await self._hold(runtime, area, ids)

    async def _hold(self, runtime: Runtime, area: HoldingArea, ids: dict[str, HeldId]) -> None:
        """A few at a time."""
        now, rng = runtime.clock.wall_ms(), runtime.rng
        under_way = {}
        for _ in range(rng.randint(1, 5)):
            text = self._outside.name()
            due_ms = rng.choice((now, now + rng.randrange(300), now + rng.randrange(9_000), FOREVER_MS))
            self._outside.fates[text] = Fate(due_ms)
            under_way[text] = area.hold(Batch(0, 1, BatchFormat.PULSAR, 0, text.encode()), due_ms)
        for text, future in under_way.items():
            ids[text] = await future
            self._outside.fates[text].held_ms = runtime.clock.wall_ms()

    async def _cancel(self, area: HoldingArea, text: str, held: HeldId) -> None:
        fate = self._outside.fates[text]
        before, fate.cancelled = fate.cancelled, None
        try:
            await area.cancel(held)
        except NotHeldError:
            fate.cancelled = before
        else:
            fate.cancelled = True

    async def _free(self, area: HoldingArea, text: str, held: HeldId) -> None:
        self._outside.fates[text].freed = True
        with contextlib.suppress(NotHeldError):
            await area.release(held)

    async def finish(self, runtime: Runtime) -> list[Batch]:
        """The last one: wait until everything dated is out, and read the stream."""
        stream, area = await self.open(runtime)
        self._outside.terms.append(Term(runtime.clock.wall_ms()))
        dated = [fate.due_ms for fate in self._outside.fates.values() if fate.due_ms < FOREVER_MS]
        wait_ms = max([*dated, 0]) - runtime.clock.wall_ms()
        await runtime.clock.sleep(max(wait_ms, 0) / 1000 + 2)
        left = [item async for item in area.items()]
        assert all(item.due_ms == FOREVER_MS for item in left)
        assert (await area.count()).batches == len(left)
        batches: list[Batch] = []
        offset = 0
        while read := await stream.read(offset, 100_000):
            batches += read
            offset = read[-1].end_offset
        if area.failure is not None:
            raise area.failure
        return batches


async def scenario(world: World) -> tuple[Outside, list[Batch], bool]:
    dice = world.rng("scenario")
    cluster = await sound_cluster(world)
    outside = Outside()
    settings = make_holding(dice)
    calm = dice.random() < 0.6  # only brokers die, so releases must be prompt
    for change in range(dice.randint(3, 6)):
        node = world.node(f"broker{change % 2}")
        main = node.start(Broker(cluster, node.name, outside, settings).run)
        main.add_done_callback(lambda main: main.cancelled() or main.exception())
        await world.sleep(dice.uniform(0.1, 3.0))
        if not calm and dice.random() < 0.7:
            world.node(dice.choice(cluster.bookie_names)).crash()  # it comes back by itself
            await world.sleep(dice.uniform(0.0, 1.5))
        _end_terms(world, outside)
        if dice.random() < 0.7:
            node.crash()
            await world.sleep(dice.choice((0.0, 0.05, 1.0, 4.0)))
    node = world.node("broker9")
    batches = await _finish(world, Broker(cluster, node.name, outside, settings), patient=not calm)
    assert not cluster.bugs
    return outside, batches, calm


async def _finish(world: World, broker: Broker, *, patient: bool) -> list[Batch]:
    while True:
        try:
            return await world.node("broker9").start(broker.finish)
        except StreamFencedError:
            continue  # the one before was still opening the stream, and has it now
        except WeirError:
            if not patient:  # nothing but brokers failed: an error here is a bug
                raise
            await world.sleep(1.0)


def _end_terms(world: World, outside: Outside) -> None:
    now = world.node("broker9").runtime.clock.wall_ms()
    for term in outside.terms:
        term.ended_ms = now if term.ended_ms is None else term.ended_ms


def check(outside: Outside, batches: list[Batch], calm: bool) -> None:
    released: dict[str, list[Batch]] = {}
    for batch in batches:
        if batch.held is not None:
            released.setdefault(bytes(batch.payload).decode(), []).append(batch)
    assert not [text for text in released if text not in outside.fates]
    for text, fate in outside.fates.items():
        found = released.get(text, [])
        assert len(found) <= 1, f"{text} was released {len(found)} times"
        if fate.cancelled:
            assert not found, f"{text} was cancelled, and released"
        elif fate.held_ms is not None and fate.cancelled is False and fate.due_ms < FOREVER_MS:
            assert found, f"{text} was acknowledged and never released: {fate}"
        for batch in found:
            assert fate.freed or batch.append_ms >= fate.due_ms, f"{text} was released too early"
            if calm and not fate.freed and fate.held_ms is not None:
                _check_prompt(text, fate, batch, outside.terms)


def _check_prompt(text: str, fate: Fate, batch: Batch, terms: list[Term]) -> None:
    """In no term did it wait longer than allowed."""
    assert fate.held_ms is not None
    for term in terms:
        ready_ms = max(fate.due_ms, fate.held_ms)
        latest_ms = max(ready_ms + PROMPT_MS, term.opened_ms + TAKE_UP_MS)
        ended_ms = batch.append_ms if term.ended_ms is None else min(term.ended_ms, batch.append_ms)
        assert ended_ms <= latest_ms, f"{text} waited in {term}: {fate}, released at {batch.append_ms}"


def verdict(seed: int) -> str:
    """What is wrong with a seed's run; empty if nothing is."""
    logging.disable(logging.ERROR)
    try:
        check(*simulate(seed, scenario))
    except AssertionError as wrong:
        return f"seed {seed}: {wrong}"
    finally:
        logging.disable(logging.NOTSET)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _CHUNK))
def test_every_held_message_is_released_once_and_on_time_in_seeds_from(first: int) -> None:
    for seed in range(first, first + _CHUNK):
        assert not verdict(seed)


# --- the checks can fail ----------------------------------------------------------------------------------------


async def _finds_nothing(_stream: Stream, _offset: int) -> AsyncGenerator[tuple[HeldId, Batch], None]:
    return
    yield


async def _closed_as_it_was(self: Loader, ledger: HeldLedger) -> None:
    ledger.closed = True
    del self._settling[ledger.serial]


async def _no_flush(_self: StateLog) -> None:
    return


def _taken_or_not(self: HeldLedger, entry: int) -> bool:
    return 0 <= entry < self.entries and entry not in self.done


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "what", "instead"),
    [
        pytest.param(holding, "released_since", _finds_nothing, id="the stream is not searched at opening"),
        pytest.param(Loader, "_settle", _closed_as_it_was, id="ledgers of a former holder are not recovered"),
        pytest.param(StateLog, "flush", _no_flush, id="ledgers and cancellations are not made durable"),
        pytest.param(HeldLedger, "is_free", _taken_or_not, id="what is being released can be taken again"),
    ],
)
def test_a_broken_promise_is_found_within_a_few_seeds(
    monkeypatch: pytest.MonkeyPatch, where: object, what: str, instead: object
) -> None:
    monkeypatch.setattr(where, what, instead)
    assert any(verdict(seed) for seed in range(25))
