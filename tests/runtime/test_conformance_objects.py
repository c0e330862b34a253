"""Stores of objects over the runtime's disk; the bucket's are in `tests/process/test_tiered.py`."""

from collections.abc import AsyncIterator

import pytest

from weir.model.errors import ObjectMissingError, ObjectStoreError
from weir.model.ids import Buffer
from weir.runtime.object_store import RuntimeStores
from weir.testing.world.drivers import ConformanceSite, on_every_runtime


async def _pieces(*pieces: bytes) -> AsyncIterator[Buffer]:
    for piece in pieces:
        yield piece


async def _failing() -> AsyncIterator[Buffer]:
    yield b"half"
    raise ObjectStoreError("no more")


@on_every_runtime
async def test_an_object_is_written_whole_read_in_ranges_listed_and_deleted(place: ConformanceSite) -> None:
    store = RuntimeStores(place.runtime).open(f"file://{place.folder}/a lake/s", {})
    assert await store.list() == []
    assert await store.put("1-a.segment", _pieces(b"hello ", b"world")) == 11
    assert await store.size("1-a.segment") == 11
    assert await store.read("1-a.segment", 6, 100) == b"world"
    assert await store.put("1-a.segment", _pieces(b"another")) == 7
    assert await store.read("1-a.segment", 0, 3) == b"ano"
    await store.put("2-b.segment", _pieces(b"x" * 3_000_000))
    assert await store.read("2-b.segment", 2_999_999, 5) == b"x"
    assert await store.list() == ["1-a.segment", "2-b.segment"]
    await store.delete("1-a.segment")
    await store.delete("1-a.segment")
    assert await store.list() == ["2-b.segment"]
    await store.clear()
    await store.clear()
    assert await store.list() == []


@on_every_runtime
async def test_what_is_missing_is_named_and_what_fails_leaves_nothing(place: ConformanceSite) -> None:
    store = RuntimeStores(place.runtime).open(f"file://{place.folder}/s", {})
    for ask in (store.read("none", 0, 1), store.size("none")):
        with pytest.raises(ObjectMissingError, match="s/none"):
            await ask
    with pytest.raises(ObjectStoreError):
        await store.put("1", _failing())
    assert await store.list() == []


def test_a_store_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ObjectStoreError, match="kind"):
        RuntimeStores(None).open("ftp://somewhere", {})  # type: ignore[arg-type]
