"""The state log: what was flushed is there for the next holder, and a former holder can write nothing more."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import BookieUnavailableError, StreamFencedError, WireError
from weir.stream.chain import HeldChain
from weir.stream.log import Stream
from weir.stream.state_log import StateLog
from weir.wire.stream import DEFLATED, PLAIN, decode_changes, encode_changes


async def opened(bench, **changes) -> StateLog:
    context = await bench.broker(**changes)
    return await StateLog.open(context, "s", await HeldChain.take(context, "s", create_missing=True))


def test_what_was_flushed_is_there_for_the_next_holder(run: Callable) -> None:
    async def scenario(bench) -> None:
        state = await opened(bench)
        state.put("a", b"1")
        state.put("b", b"2")
        state.delete("a")
        state.mark("c", lambda: b"3")
        await state.flush()
        again = await opened(bench)
        assert again.keys("") == ["b", "c"]
        assert (again.get("a"), again.get("b"), again.get("c")) == (None, b"2", b"3")

    run(scenario)


def test_changes_within_the_pause_are_one_entry(run: Callable) -> None:
    async def scenario(bench) -> None:
        state = await opened(bench)
        asked = []

        def source() -> bytes:
            asked.append(1)
            return b"x"

        for _ in range(100):
            state.mark("cursor", source)
        await bench.runtime.clock.sleep(5)
        assert len(asked) == 1
        assert (await opened(bench)).get("cursor") == b"x"

    run(scenario)


def test_a_state_of_any_size_is_written_though_an_entry_has_a_limit(
    run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.ledger.writer.MAX_PAYLOAD_BYTES", 2_000_000)

    async def scenario(bench) -> None:
        state = await opened(bench)
        state.put("first", b"1")
        await state.flush()
        for number in range(4):  # more than an entry may hold, all at once and as a whole
            state.put(f"key{number}", bytes([number]) * 700_000)
        await state.flush()
        state.put("last", b"2")
        await state.flush()
        again = await opened(bench)
        assert len(again.keys("")) == 6
        assert again.get("key3") == bytes([3]) * 700_000
        assert (again.get("first"), again.get("last")) == (b"1", b"2")

    run(scenario)


def test_a_stream_without_state_costs_no_ledger(run: Callable) -> None:
    async def scenario(bench) -> None:
        state = await opened(bench)
        await state.flush()
        await state.close()
        assert not any(bookie.ledgers for bookie in bench.bookies.bookies.values())

    run(scenario)


def test_a_former_holder_can_write_nothing_more(run: Callable) -> None:
    async def scenario(bench) -> None:
        first = await opened(bench)
        first.put("k", b"old")
        await first.flush()
        second = await opened(bench)
        second.put("k", b"new")
        await second.flush()
        first.put("k", b"ghost")
        with pytest.raises(StreamFencedError):
            await first.flush()
        assert (await opened(bench)).get("k") == b"new"

    run(scenario)


def test_the_ledger_is_written_anew_when_it_has_grown_and_the_old_one_goes(run: Callable) -> None:
    async def scenario(bench) -> None:
        state = await opened(bench, state_roll_bytes=1000)
        for i in range(50):
            state.put("k", b"%d" % i * 100)
            state.put(f"k{i % 3}", b"%d" % i)
            await state.flush()
        held = {ledger for bookie in bench.bookies.bookies.values() for ledger in bookie.ledgers}
        assert len(held) == 1
        again = await opened(bench)
        assert again.get("k") == b"49" * 100
        assert again.get("k0") == b"48"

    run(scenario)


def test_state_survives_bookies_that_fail_for_a_while(run: Callable) -> None:
    async def scenario(bench) -> None:
        state = await opened(bench)
        state.put("k", b"1")
        await state.flush()
        for bookie in bench.bookies.bookies.values():
            bookie.failure = BookieUnavailableError("down")
        state.put("k", b"2")
        await bench.runtime.clock.sleep(30)
        for bookie in bench.bookies.bookies.values():
            bookie.failure = None
        await state.flush()
        assert (await opened(bench)).get("k") == b"2"

    run(scenario)


@given(st.dictionaries(st.text(max_size=20), st.none() | st.binary(max_size=50)))
def test_changes_survive_the_round_trip(changes: dict[str, bytes | None]) -> None:
    assert decode_changes(encode_changes(changes)) == changes


@given(st.dictionaries(st.text(max_size=20), st.none() | st.binary(max_size=2_000)))
def test_changes_survive_the_round_trip_when_they_are_deflated(changes: dict[str, bytes | None]) -> None:
    assert decode_changes(encode_changes(changes, DEFLATED)) == changes


def test_what_is_long_is_deflated_if_every_reader_knows_how_to_read_it() -> None:
    changes = {"k": b"ab" * 1_000}
    plain, deflated = encode_changes(changes), encode_changes(changes, DEFLATED)
    assert (plain[0], deflated[0]) == (PLAIN, DEFLATED)
    assert len(deflated) < len(plain) / 10
    assert encode_changes({"k": b"v"}, DEFLATED)[0] == PLAIN
    for cut in (deflated[:-1], deflated + b"x", deflated[:5] + b"\xff" + deflated[6:]):
        with pytest.raises(WireError):
            decode_changes(cut)


@given(st.binary(max_size=60), st.sampled_from([b"", b"\x01\x02\x00\x00\x00", b"\x02\x02\x00\x00\x00"]))
def test_bytes_that_are_no_changes_are_refused(raw: bytes, head: bytes) -> None:
    with suppress(WireError):
        decode_changes(head + raw)


def test_a_flush_ends_although_others_go_on_making_changes(run: Callable) -> None:
    async def scenario(bench) -> None:
        state = await opened(bench)
        clock = bench.runtime.clock

        async def keep_marking() -> None:
            while True:
                state.mark("busy", lambda: b"x")
                await clock.sleep(0)

        busy = asyncio.get_running_loop().create_task(keep_marking())
        await clock.sleep(0)
        state.put("mine", b"1")
        await state.flush()
        assert (await opened(bench)).get("mine") == b"1"
        busy.cancel()

    run(scenario)


def test_a_state_goes_on_when_its_ledger_was_closed_for_a_bookie_that_leaves(run: Callable) -> None:
    async def scenario(bench) -> None:
        context = await bench.broker()
        stream = await Stream.open(context, "s", create_missing=True)
        state = await stream.open_state()
        state.put("a", b"1")
        await state.flush()
        former = stream.chain.state_ledger
        await (await bench.broker()).ledgers.recover(former)  # as decommissioning does
        state.put("b", b"2")
        await state.flush()
        assert stream.chain.state_ledger != former
        again = await (await Stream.open(await bench.broker(), "s")).open_state()
        assert (again.get("a"), again.get("b")) == (b"1", b"2")

    run(scenario)


def test_who_has_lost_a_stream_leaves_no_ledger_of_its_state_behind(run: Callable) -> None:
    async def scenario(bench) -> None:
        context = await bench.broker()
        state = await (await Stream.open(context, "s", create_missing=True)).open_state()
        state.put("a", b"1")
        await state.flush()
        later = await Stream.open(await bench.broker(), "s")
        await later.open_state()
        state.put("a", b"2")
        with pytest.raises(StreamFencedError):
            await state.flush()
        assert [ledger.ledger_id for ledger in await context.ledgers.list()] == [later.chain.state_ledger]

    run(scenario)
