"""Where offsets lie: what is known need not be searched for."""

import asyncio

import pytest

from weir.model.batch import Batch, BatchFormat
from weir.stream.history import Places, find_entry


def _batch(base: int, count: int = 10) -> Batch:
    return Batch(base, count, BatchFormat.KAFKA, 0, b"x")


class _Ledger:
    """Entries of ten messages each, from offset 100 on; notes which of them were read."""

    def __init__(self) -> None:
        self.probed: list[int] = []

    async def probe(self, entry: int) -> Batch:
        self.probed.append(entry)
        return _batch(100 + 10 * entry)


def test_a_reader_that_goes_on_where_it_stopped_never_searches() -> None:
    ledger, places = _Ledger(), Places(100)
    for entry in range(50):
        assert asyncio.run(find_entry(places, 100 + 10 * entry, 1000, ledger.probe)) == entry
        places.learn(100 + 10 * (entry + 1), entry + 1)
    assert ledger.probed == []


@pytest.mark.parametrize("offset", [100, 101, 109, 110, 555, 5_000, 10_099])
def test_any_offset_is_found_by_reading_few_entries(offset: int) -> None:
    ledger, places = _Ledger(), Places(100)
    assert asyncio.run(find_entry(places, offset, 1000, ledger.probe)) == (offset - 100) // 10
    assert len(ledger.probed) <= 10
