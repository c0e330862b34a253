"""The compare-and-set loop: conflicts are retried, lost replies are found out, transforms decide."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from weir.meta.interfaces import Lease, MetaStore, Versioned
from weir.meta.local import MemoryCore, MemoryMeta
from weir.meta.update import LEDGER, Codec, UpdateSettings, VersionedValue, create, read, update, upsert
from weir.model.errors import (
    LedgerClosedError,
    MetaConflictError,
    MetaError,
    MetaKeyMissingError,
    MetaUnavailableError,
    WireError,
)
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import Fragment, LedgerMetadata, Quorum
from weir.runtime.interfaces import Runtime
from weir.testing.world.meta import FaultyMeta, MetaFaults
from weir.testing.world.world import World, simulate

T = TypeVar("T")
TEXT: Codec[str] = Codec(str.encode, bytes.decode)


class Scripted:
    """A store whose next puts end as told: 'conflict' (another client is first), 'lost request', 'lost reply', or
    'late' (lost, and made only when the next put arrives)."""

    def __init__(self, inner: MetaStore, *script: str) -> None:
        self._inner = inner
        self._script = list(script)
        self._late: Callable[[], Coroutine[Any, Any, int]] | None = None
        self.gets = 0
        self.puts = 0

    async def get(self, key: str) -> Versioned | None:
        self.gets += 1
        return await self._inner.get(key)

    async def put(self, key: str, value: bytes, *, expect: int | None = None, lease: Lease | None = None) -> int:
        self.puts += 1
        if self._late is not None:
            late, self._late = self._late, None
            await late()
        end = self._script.pop(0) if self._script else ""
        if end == "conflict":
            current = await self._inner.get(key)
            await self._inner.put(key, b"theirs" if current is None else current.value + b"+theirs")
        if end == "late":
            self._late = lambda: self._inner.put(key, value, expect=expect)
        if end in ("lost request", "late"):
            raise MetaUnavailableError("the request was lost")
        version = await self._inner.put(key, value, expect=expect)
        if end == "lost reply":
            raise MetaUnavailableError("the reply was lost")
        return version

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def in_simulation(scenario: Callable[[MetaStore, Runtime], Coroutine[Any, Any, T]], seed: int = 1) -> T:
    async def run(world: World) -> T:
        node = world.node("client")

        async def main(runtime: Runtime) -> T:
            return await scenario(MemoryMeta(MemoryCore(runtime.clock), runtime), runtime)

        return await node.start(main)

    return simulate(seed, run)


def add(text: str) -> Callable[[str], str]:
    return lambda value: value if text in value else value + text


def test_an_update_transforms_the_value_that_is_there() -> None:
    async def scenario(store: MetaStore, runtime: Runtime) -> None:
        await store.put("/k", b"a")
        changed = await update(store, "/k", TEXT, add("b"), runtime=runtime)
        assert changed == VersionedValue("/k", "ab", 2)
        assert await read(store, "/k", TEXT) == changed

    in_simulation(scenario)


def test_the_same_object_means_that_nothing_is_put() -> None:
    async def scenario(store: MetaStore, runtime: Runtime) -> None:
        await store.put("/k", b"ab")
        scripted = Scripted(store)
        assert await update(scripted, "/k", TEXT, add("b"), runtime=runtime) == VersionedValue("/k", "ab", 1)
        assert scripted.puts == 0

    in_simulation(scenario)


def test_what_the_transform_raises_ends_the_loop_and_nothing_is_put() -> None:
    def refuse(_: str) -> str:
        raise LedgerClosedError("closed")

    async def scenario(store: MetaStore, runtime: Runtime) -> None:
        await store.put("/k", b"a")
        scripted = Scripted(store)
        with pytest.raises(LedgerClosedError):
            await update(scripted, "/k", TEXT, refuse, runtime=runtime)
        assert scripted.puts == 0

    in_simulation(scenario)


def test_a_missing_key_is_an_error_for_update_and_none_for_upsert() -> None:
    async def scenario(store: MetaStore, runtime: Runtime) -> None:
        with pytest.raises(MetaKeyMissingError):
            await update(store, "/k", TEXT, add("b"), runtime=runtime)
        made = await upsert(store, "/k", TEXT, lambda value: (value or "") + "x", runtime=runtime)
        assert made == VersionedValue("/k", "x", 1)
        assert (await upsert(store, "/k", TEXT, lambda v: (v or "") + "y", runtime=runtime)).value == "xy"

    in_simulation(scenario)


def test_bytes_that_do_not_decode_are_the_codecs_error() -> None:
    async def scenario(store: MetaStore, runtime: Runtime) -> None:
        await store.put("/k", b"no ledger")
        with pytest.raises(WireError):
            await update(store, "/k", LEDGER, lambda ledger: ledger, runtime=runtime)

    in_simulation(scenario)


@pytest.mark.parametrize(
    ("script", "result"),
    [
        pytest.param(["conflict"], "a+theirs+mine", id="another was first: transformed again on theirs"),
        pytest.param(["conflict"] * 10, "a" + "+theirs" * 10 + "+mine", id="ten others were first"),
        pytest.param(["lost request"], "a+mine", id="the request was lost: put again"),
        pytest.param(["lost reply"], "a+mine", id="the reply was lost: found and not put again"),
        pytest.param(["late"], "a+mine", id="the lost put arrives late and makes the second one conflict"),
        pytest.param(["late", "lost request"], "a+mine", id="late, and the second is lost too"),
        pytest.param(["late", "conflict"], "a+mine+theirs", id="late, then another on top: its effect is there"),
        pytest.param(["lost reply", "conflict"], "a+mine", id="a lost reply needs no second put"),
    ],
)
def test_an_update_takes_effect_exactly_once(script: list[str], result: str) -> None:
    async def scenario(store: MetaStore, runtime: Runtime) -> str:
        await store.put("/k", b"a")
        changed = await update(Scripted(store, *script), "/k", TEXT, add("+mine"), runtime=runtime)
        assert await read(store, "/k", TEXT) == changed
        return changed.value

    assert in_simulation(scenario) == result


def test_what_the_caller_knows_saves_a_read() -> None:
    async def scenario(store: MetaStore, runtime: Runtime) -> None:
        known = VersionedValue("/k", "a", await store.put("/k", b"a"))
        scripted = Scripted(store)
        changed = await update(scripted, "/k", TEXT, add("b"), runtime=runtime, known=known)
        assert (changed.value, scripted.gets, scripted.puts) == ("ab", 0, 1)

    in_simulation(scenario)


def test_what_the_caller_knows_may_be_out_of_date() -> None:
    def only_once(value: str) -> str:
        if "b" in value:
            raise LedgerClosedError("already there")
        return value + "b"

    async def scenario(store: MetaStore, runtime: Runtime) -> None:
        stale = VersionedValue("/k", "ab", await store.put("/k", b"ab"))
        await store.put("/k", b"x")
        # Refused, and needless, on what was known; right on what is there.
        assert (await update(store, "/k", TEXT, only_once, runtime=runtime, known=stale)).value == "xb"
        await store.put("/k", b"y")
        assert (await update(store, "/k", TEXT, add("b"), runtime=runtime, known=stale)).value == "yb"

    in_simulation(scenario)


@pytest.mark.parametrize("script", [["lost reply"], ["late"], ["lost request"], ["late", "lost request"], []])
def test_create_succeeds_once_whatever_happens_to_its_messages(script: list[str]) -> None:
    async def scenario(store: MetaStore, runtime: Runtime) -> None:
        made = await create(Scripted(store, *script), "/k", TEXT, "mine", runtime=runtime)
        assert made == VersionedValue("/k", "mine", 1)
        with pytest.raises(MetaConflictError):
            await create(store, "/k", TEXT, "other", runtime=runtime)
        assert await read(store, "/k", TEXT) == made

    in_simulation(scenario)


def test_create_of_what_another_made_is_a_conflict_even_if_it_was_only_just_made() -> None:
    async def scenario(store: MetaStore, runtime: Runtime) -> None:
        with pytest.raises(MetaConflictError):
            await create(Scripted(store, "conflict"), "/k", TEXT, "mine", runtime=runtime)
        found = await read(store, "/k", TEXT)
        assert found is not None
        assert found.value == "theirs"

    in_simulation(scenario)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        pytest.param(["conflict"] * 5, MetaConflictError, id="always beaten"),
        pytest.param(["lost request"] * 5, MetaUnavailableError, id="never answered"),
        pytest.param(["lost request", "conflict", "conflict"], MetaUnavailableError, id="one outcome unknown"),
    ],
)
def test_it_gives_up_after_so_many_attempts_and_says_what_is_known(
    script: list[str], error: type[MetaError]
) -> None:
    async def scenario(store: MetaStore, runtime: Runtime) -> int:
        await store.put("/k", b"a")
        scripted = Scripted(store, *script)
        settings = UpdateSettings(attempts=3)
        with pytest.raises(error):
            await update(scripted, "/k", TEXT, add("+mine"), runtime=runtime, settings=settings)
        return scripted.puts

    assert in_simulation(scenario) == 3


def test_a_ledgers_metadata_goes_through_the_loop() -> None:
    ledger = LedgerMetadata(LedgerId(1), Quorum(), (Fragment(EntryId(0), (BookieId("b1"),)),))
    moved = Fragment(EntryId(5), (BookieId("b2"),))

    async def scenario(store: MetaStore, runtime: Runtime) -> None:
        made = await create(store, "/l", LEDGER, ledger, runtime=runtime)
        changed = await update(
            store, "/l", LEDGER, lambda found: found.with_fragment(moved), runtime=runtime, known=made
        )
        assert changed.value.fragments == (*ledger.fragments, moved)
        assert await read(store, "/l", LEDGER) == changed

    in_simulation(scenario)


@pytest.mark.parametrize("seed", range(40))
def test_contending_updates_over_bad_connections_each_take_effect_exactly_once(seed: int) -> None:
    faults = MetaFaults(delay_s=0.02, lose_request=0.15, lose_reply=0.15)

    async def scenario(world: World) -> None:
        core = MemoryCore(world.node("meta").runtime.clock)
        done: list[str] = []

        def client(name: str) -> Callable[[Runtime], Coroutine[Any, Any, None]]:
            async def main(runtime: Runtime) -> None:
                store = FaultyMeta(MemoryMeta(core, runtime), runtime, faults)
                for n in range(10):
                    mark = f"<{name}{n}>"
                    await upsert(
                        store, "/k", TEXT, lambda v, m=mark: v if v is not None and m in v else (v or "") + m,
                        runtime=runtime,
                    )  # fmt: skip
                    done.append(mark)

            return main

        started = [world.node(name).start(client(name)) for name in ("a", "b", "c", "d")]
        for each in started:
            await each
        text = core.state.get("/k")
        assert text is not None
        assert len(done) == 40
        assert all(text.value.count(mark.encode()) == 1 for mark in done)
        for name in "abcd":  # each client's own order holds
            places = [text.value.index(f"<{name}{n}>".encode()) for n in range(10)]
            assert places == sorted(places)

    simulate(seed, scenario)
