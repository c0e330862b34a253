"""Ledgers on their way to the lake while holders of the stream die, are replaced and go on without knowing it.

Each offset is read once, with its bytes, by whoever holds the stream; at the end the store has the objects that
the chain names and no other, and the ledgers that it says are gone are gone. Plausible mistakes are found.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from weir.meta import keys
from weir.model.errors import ObjectStoreError, WeirError
from weir.model.stream import LedgerFate, SegmentStore
from weir.stream import tiering
from weir.stream.context import StreamContext
from weir.stream.log import Stream
from weir.stream.segments import SegmentReads
from weir.testing.storage.objects import SimObjects
from weir.wire import segment as segments

FOLDER = SegmentStore("s3://lake/_segments/owner/s")
SEEDS = range(int(os.environ.get("WEIR_TIERED_SEEDS", "12")))
Run = Callable[..., None]


class _Dead(ObjectStoreError):
    """What a broker that has died finds of everything."""


class Holder:
    """One that opened the stream: it dies at a step that the dice choose, or lives on as a stranger."""

    def __init__(self, story: "Story", deadly: int) -> None:
        self.story = story
        self.dead = False
        #: What each request of one that has lost the stream takes.
        self.slow_s = 0.0
        self._left = deadly

    def step(self, *_: str) -> None:
        if self.dead:
            raise _Dead("it has died")
        self._left -= 1
        if self._left == 0:
            self.dead = True
            raise _Dead("it dies here")


class Story:
    def __init__(self, bench: Any, seed: int, *, strangers: float = 0.4) -> None:
        self.bench = bench
        self.takeovers = strangers
        self.rng = Random(seed)
        self.objects = SimObjects(bench.runtime.clock, Random(seed))
        self.objects.failing = self.rng.choice((0.0, 0.05, 0.2))
        self.sent: dict[int, bytes] = {}
        self.holder = Holder(self, 0)
        self.stream: Stream | None = None
        self.strangers: list[asyncio.Task[None]] = []

    async def open(self, *, deadly: bool = True) -> Stream:
        """Take the stream over; the former holder may go on for a while."""
        holder = self.holder = Holder(self, self.rng.randrange(1, 25) if deadly else 0)
        context = await self.bench.broker(tail_bytes=0)
        made = StreamContext(
            context.runtime,
            context.meta,
            context.ledgers,
            context.tails,
            context.settings,
            stores=_Watched(self.objects, holder),
            reached=holder.step,
        )
        while True:
            with suppress(WeirError):
                self.stream = await Stream.open(made, "s", create_missing=True)
                return self.stream
            await self.bench.runtime.clock.sleep(0.1)

    async def run(self) -> None:
        stream = await self.open()
        for _ in range(14):
            action = self.rng.random()
            try:
                if action < 0.45 or not stream.chain.spans:
                    await self.append(stream)
                elif action < 0.5:
                    await stream.trim(self.rng.randrange(stream.start_offset, stream.end_offset + 1))
                    self.sent = {at: data for at, data in self.sent.items() if at >= stream.start_offset}
                elif action < 0.85:
                    work = asyncio.ensure_future(self.tier(stream))
                    if self.rng.random() < self.takeovers:  # another broker takes it over while this one is busy
                        self.strangers.append(work)
                        await self.bench.runtime.clock.sleep(self.rng.random() * 0.2)
                        self.holder.slow_s = 2.0 * self.rng.random()
                        stream = await self.open()
                        await self.append(stream)
                        await self.tier(stream)
                    else:
                        await work
                else:
                    await self.check(stream)
            except _Dead:
                pass
            except WeirError:
                await self.bench.runtime.clock.sleep(0.1)
            if self.holder.dead:
                stream = await self.open()
        await asyncio.gather(*self.strangers, return_exceptions=True)
        await self.end()

    async def append(self, stream: Stream) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            data = b"message %d " % self.rng.getrandbits(64) + b"x" * self.rng.randrange(200)
            offset = await stream.append(self.bench.draft(data.decode()))
            self.sent[offset] = data
        await stream.roll()

    async def tier(self, stream: Stream) -> None:
        for span in stream.chain.spans:
            if span.closed and self.rng.random() < 0.8:
                with suppress(WeirError):
                    await stream.tiering.copy(span.ledger_id, FOLDER)
                    if self.rng.random() < 0.8:
                        await stream.tiering.let_go(span.ledger_id)
        stream.tiering.sweep_again()
        with suppress(WeirError):
            await stream.tiering.sweep()

    async def check(self, stream: Stream) -> None:
        """All that was acknowledged and not trimmed, once and in order."""
        found: dict[int, bytes] = {}
        offset = stream.start_offset
        while batches := await stream.read(offset, 300):
            for batch in batches:
                assert batch.end_offset > offset, "in order"
                offset = batch.end_offset
                found[batch.base_offset] = bytes(batch.payload)
        wrong = {at for at, data in self.sent.items() if at >= stream.start_offset and found.get(at) != data}
        assert not wrong, f"offsets {sorted(wrong)} are not as they were sent"

    async def end(self) -> None:
        self.objects.failing = 0.0
        stream = await self.open(deadly=False)
        await self.check(stream)
        for span in stream.chain.spans:
            if span.closed:
                await stream.tiering.copy(span.ledger_id, FOLDER)
                await stream.tiering.let_go(span.ledger_id)
        await self.append(stream)
        await stream.tiering.sweep()
        await self.check(stream)
        again = await self.open(deadly=False)
        await self.check(again)
        chain = again.chain
        named = {span.segment.name for span in chain.spans if span.segment is not None}
        assert {name for _, name in self.objects.objects} == named, "objects that nobody names"
        there = {keys.ledger_id_of(item.key) for item in (await again._context.meta.list(keys.LEDGERS)).items}
        gone = {
            span.ledger_id
            for span in chain.spans
            if span.segment is not None and span.segment.ledger is LedgerFate.GONE
        }
        assert not there & gone, "ledgers that were to go"


class _Watched:
    """The store as one broker reaches it: no more once it is dead."""

    def __init__(self, objects: SimObjects, holder: Holder) -> None:
        self._objects = objects
        self._holder = holder

    def open(self, url: str, options: Any) -> Any:
        return _WatchedStore(self._objects.open(url, options), self._holder)


class _WatchedStore:
    def __init__(self, store: Any, holder: Holder) -> None:
        self._store = store
        self._holder = holder

    def __getattr__(self, name: str) -> Any:
        async def asked(*arguments: Any) -> Any:
            self._holder.step(name)
            await self._holder.story.bench.runtime.clock.sleep(self._holder.slow_s)
            answer = await getattr(self._store, name)(*arguments)
            self._holder.step(name)
            return answer

        return asked


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "BLOCK_BYTES", 300)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_offset_is_lost_and_nothing_is_left_behind_whoever_dies_when(run: Run, seed: int) -> None:
    async def scenario(bench: Any) -> None:
        await Story(bench, seed).run()

    run(scenario)


@contextmanager
def _ledger_first(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The ledger is deleted before the chain says that its copy is read."""

    async def let_go(self: Any, ledger_id: Any) -> None:
        span = self._chain.value.span_of(ledger_id)
        if span is None or span.segment is None or span.segment.ledger is LedgerFate.GONE:
            return
        await self._context.ledgers.delete(ledger_id)
        self._context.reached("deleted")
        gone = replace(span.segment, ledger=LedgerFate.GONE)
        await self._chain.change(lambda now: now.with_segment(ledger_id, gone))

    patch.setattr(tiering.StreamTiering, "let_go", let_go)
    yield


@contextmanager
def _one_name(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every attempt to copy a ledger writes the same object, and removes it if it comes to nothing."""

    def _copied(number: int, place: SegmentStore, name: str) -> Any:
        return original(number, place, f"{name.partition('-')[0]}-one.segment")

    original = tiering.Copied
    patch.setattr(tiering, "Copied", _copied)
    yield


@contextmanager
def _greedy_sweep(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Who sweeps takes all that its own chain does not name for orphans."""
    patch.setattr(
        tiering,
        "_is_orphan",
        lambda chain, name: all(s.segment is None or s.segment.name != name for s in chain.spans),
    )
    yield


@contextmanager
def _no_sweep(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody looks for what was left behind."""

    async def sweep(self: Any) -> int:
        return 0

    patch.setattr(tiering.StreamTiering, "sweep", sweep)
    yield


@contextmanager
def _wrong_block(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A read begins with the block behind the one that has the offset."""
    whole = SegmentReads._read

    async def read(self: Any, place: Any, span: Any, offset: int, max_bytes: int) -> Any:
        opened = await self._open(place, span)
        number = min(opened.index.block_at(offset) + 1, len(opened.index.blocks) - 1)
        return await whole(self, place, span, opened.index.blocks[number].base_offset, max_bytes)

    patch.setattr(SegmentReads, "_read", read)
    yield


@contextmanager
def _gone_at_once(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The chain says that the ledger is gone, and then it is deleted."""

    async def let_go(self: Any, ledger_id: Any) -> None:
        span = self._chain.value.span_of(ledger_id)
        if span is None or span.segment is None or span.segment.ledger is LedgerFate.GONE:
            return
        gone = replace(span.segment, ledger=LedgerFate.GONE)
        await self._chain.change(lambda now: now.with_segment(ledger_id, gone))
        self._context.reached("going")
        await self._context.ledgers.delete(ledger_id)

    patch.setattr(tiering.StreamTiering, "let_go", let_go)
    yield


#: Each with a seed that finds it; others are tried if the code has moved on since.
MISTAKES = {_ledger_first: 9, _one_name: 11, _greedy_sweep: 45, _no_sweep: 0, _wrong_block: 0, _gone_at_once: 4}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(run: Run, mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    async def scenario(bench: Any) -> None:
        await Story(bench, seeds[0], strangers=0.8 if mistake in (_one_name, _greedy_sweep) else 0.4).run()

    with monkeypatch.context() as patch, mistake(patch):
        for number in range(MISTAKES[mistake], MISTAKES[mistake] + 60):
            seeds[:] = [number]
            try:
                run(scenario)
            except (AssertionError, WeirError):
                return
    raise AssertionError(mistake.__doc__)
