"""Readers of a stream's ledgers: few are kept, however many read at once."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from weir.model.ids import LedgerId
from weir.model.stream import Span
from weir.stream.history import History


@dataclass
class Reader:
    """Of a closed ledger; closing it takes a turn."""

    open: bool = True
    closed: bool = True

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.open = False


@dataclass
class Ledgers:
    context: Any = field(default_factory=lambda: SimpleNamespace(losses=None))
    opened: list[Reader] = field(default_factory=list)

    async def open(self, ledger_id: LedgerId, *, recover: bool) -> Reader:
        await asyncio.sleep(0)
        self.opened.append(Reader())
        return self.opened[-1]


def span(number: int) -> Span:
    return Span(LedgerId(number), 0, 10)


async def test_who_reads_at_the_same_time_finds_readers_and_none_is_left_open_but_those_that_are_kept() -> None:
    ledgers = Ledgers()
    history = History(ledgers, 1, lambda ledger_id: None)  # type: ignore[arg-type]
    for _ in range(3):
        found = await asyncio.gather(*(history._reader(span(number)) for number in (1, 2, 1, 3, 2)))
        assert len(found) == 5
        assert sum(reader.open for reader in ledgers.opened) == 1
    await history.close()
    assert not any(reader.open for reader in ledgers.opened)
