"""Promises that are checked always: what would corrupt a stream silently stops it instead."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from weir.model.errors import InvariantError, WeirError
from weir.stream.chain import HeldChain
from weir.stream.cursor import Cursor
from weir.stream.log import Stream
from weir.wire.entry import MAX_PAYLOAD_BYTES


def test_what_a_ledger_refuses_at_once_uses_up_no_offset(run: Callable) -> None:
    """The next append has the offset that the refused one would have had: offsets stay dense."""

    async def scenario(bench) -> None:
        stream = await Stream.open(await bench.broker(), "s", create_missing=True)
        assert await stream.append(bench.draft("first")) == 0
        with pytest.raises(WeirError):
            await stream.append(bench.draft("x" * (MAX_PAYLOAD_BYTES + 1), count=5))
        assert await stream.append(bench.draft("second")) == 1
        assert stream.end_offset == 2
        assert await bench.texts(stream) == ["first", "second"]

    run(scenario)


def test_a_chain_goes_neither_back_nor_shorter(run: Callable) -> None:
    async def scenario(bench) -> None:
        context = await bench.broker()
        stream = await Stream.open(context, "s", create_missing=True)
        for text in ("a", "b", "c"):
            await stream.append(bench.draft(text))
        await stream.roll()
        await stream.trim(1)
        await stream.close()
        chain = await HeldChain.take(context, "s", create_missing=False)
        for broken in (
            lambda now: replace(now, epoch=now.epoch - 1),
            lambda now: replace(now, start_offset=0),
            lambda now: replace(now, spans=()),
        ):
            with pytest.raises(InvariantError):
                await chain.change(broken)
        assert chain.value.end_offset == 3

    run(scenario)


def test_a_cursor_stands_at_an_offset() -> None:
    with pytest.raises(InvariantError, match="not negative"):
        Cursor().reset(-1)
