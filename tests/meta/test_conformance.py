"""Every driver keeps every sentence of `weir.meta.interfaces`."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from weir.meta.interfaces import ABSENT, MAX_KEY_BYTES, MAX_VALUE_BYTES, Change, Creation, MetaStore, Versioned
from weir.meta.update import Codec, upsert
from weir.model.errors import LeaseExpiredError, MetaConflictError, MetaError
from weir.runtime.interfaces import Runtime

pytestmark = pytest.mark.timeout(60)
#: Where a client can end while the store lives on. The embedded store ends with its client: see test_embedded.
SHARED = pytest.mark.parametrize(
    "driver", ["memory", "remote", pytest.param("etcd", marks=pytest.mark.process), "faulty"], indirect=True
)

COUNTER: Codec[int] = Codec(lambda n: str(n).encode(), int)


async def take(changes: AsyncIterator[Change], count: int) -> list[Change]:
    return [await anext(changes) for _ in range(count)]


async def deleted(changes: AsyncIterator[Change], key: str) -> None:
    async for change in changes:
        if change.key == key and change.value is None:
            return


# --- get, put, delete -----------------------------------------------------------------------------------------


async def test_a_key_that_was_never_put_is_none(store: MetaStore, prefix: str) -> None:
    assert await store.get(prefix + "a") is None


async def test_what_was_put_is_read_back_with_the_version_that_put_returned(store: MetaStore, prefix: str) -> None:
    version = await store.put(prefix + "a", b"one")
    assert await store.get(prefix + "a") == Versioned(prefix + "a", b"one", version)


async def test_every_change_of_any_key_gets_a_higher_version(store: MetaStore, prefix: str) -> None:
    first = await store.put(prefix + "a", b"1")
    second = await store.put(prefix + "b", b"1")
    third = await store.put(prefix + "a", b"1")
    await store.delete(prefix + "b")
    fourth = await store.put(prefix + "b", b"1")
    assert ABSENT < first < second < third < fourth - 1


async def test_a_keys_version_stays_when_other_keys_change(store: MetaStore, prefix: str) -> None:
    version = await store.put(prefix + "a", b"1")
    await store.put(prefix + "b", b"1")
    assert await store.get(prefix + "a") == Versioned(prefix + "a", b"1", version)


async def test_expecting_absence_creates_a_key_only_once(store: MetaStore, prefix: str) -> None:
    await store.put(prefix + "a", b"mine", expect=ABSENT)
    with pytest.raises(MetaConflictError):
        await store.put(prefix + "a", b"theirs", expect=ABSENT)
    found = await store.get(prefix + "a")
    assert found is not None
    assert found.value == b"mine"


async def test_expecting_a_version_puts_only_at_that_version(store: MetaStore, prefix: str) -> None:
    first = await store.put(prefix + "a", b"1")
    second = await store.put(prefix + "a", b"2", expect=first)
    with pytest.raises(MetaConflictError):
        await store.put(prefix + "a", b"late", expect=first)
    assert await store.get(prefix + "a") == Versioned(prefix + "a", b"2", second)


async def test_expecting_a_version_of_a_deleted_key_is_a_conflict(store: MetaStore, prefix: str) -> None:
    version = await store.put(prefix + "a", b"1")
    await store.delete(prefix + "a")
    with pytest.raises(MetaConflictError):
        await store.put(prefix + "a", b"2", expect=version)
    await store.put(prefix + "a", b"3", expect=ABSENT)


async def test_without_expectation_a_put_overwrites(store: MetaStore, prefix: str) -> None:
    await store.put(prefix + "a", b"1")
    await store.put(prefix + "a", b"2")
    found = await store.get(prefix + "a")
    assert found is not None
    assert found.value == b"2"


async def test_a_deleted_key_is_gone(store: MetaStore, prefix: str) -> None:
    await store.put(prefix + "a", b"1")
    await store.delete(prefix + "a")
    assert await store.get(prefix + "a") is None
    assert (await store.list(prefix)).items == []


async def test_deleting_what_is_not_there_is_fine_unless_a_version_is_expected(
    store: MetaStore, prefix: str
) -> None:
    await store.delete(prefix + "a")
    await store.delete(prefix + "a", expect=ABSENT)
    with pytest.raises(MetaConflictError):
        await store.delete(prefix + "a", expect=1)


async def test_expecting_a_version_deletes_only_at_that_version(store: MetaStore, prefix: str) -> None:
    first = await store.put(prefix + "a", b"1")
    second = await store.put(prefix + "a", b"2")
    with pytest.raises(MetaConflictError):
        await store.delete(prefix + "a", expect=first)
    assert await store.get(prefix + "a") is not None
    await store.delete(prefix + "a", expect=second)
    assert await store.get(prefix + "a") is None


@pytest.mark.parametrize("value", [b"", b'\x00\xff\n"{}', bytes(range(256)) * 8, b"x" * MAX_VALUE_BYTES])
async def test_any_bytes_up_to_the_limit_are_a_value(store: MetaStore, prefix: str, value: bytes) -> None:
    version = await store.put(prefix + "a", value)
    assert await store.get(prefix + "a") == Versioned(prefix + "a", value, version)


async def test_a_value_beyond_the_limit_is_refused(store: MetaStore, prefix: str) -> None:
    with pytest.raises(MetaError):
        await store.put(prefix + "a", b"x" * (MAX_VALUE_BYTES + 1))
    assert await store.get(prefix + "a") is None


@pytest.mark.parametrize("key", ["", "/" + "x" * MAX_KEY_BYTES, "/\ud800"])
async def test_a_key_that_cannot_be_stored_is_refused(store: MetaStore, key: str) -> None:
    with pytest.raises(MetaError):
        await store.put(key, b"")


async def test_a_key_may_be_any_text(store: MetaStore, prefix: str) -> None:
    names = [
        f"{prefix}{name}"
        for name in ("ä", "日本", "a b", 'q"uote', "🚀", "\x7f", "x" * (MAX_KEY_BYTES - len(prefix.encode())))
    ]
    for name in names:
        await store.put(name, name.encode())
    assert [item.key for item in (await store.list(prefix)).items] == sorted(names)
    assert [item.value.decode() for item in (await store.list(prefix)).items] == sorted(names)


async def test_of_concurrent_conditional_puts_exactly_one_wins(driver: Any, prefix: str) -> None:
    clients: list[MetaStore] = [driver.client() for _ in range(3)]
    version = await clients[0].put(prefix + "a", b"start")
    results = await asyncio.gather(
        *(clients[n % 3].put(prefix + "a", b"%d" % n, expect=version) for n in range(9)), return_exceptions=True
    )
    won = [n for n, result in enumerate(results) if isinstance(result, int)]
    assert len(won) == 1
    assert all(isinstance(r, MetaConflictError) for n, r in enumerate(results) if n != won[0])
    assert await clients[1].get(prefix + "a") == Versioned(prefix + "a", b"%d" % won[0], results[won[0]])


async def test_concurrent_updates_through_the_loop_all_count(driver: Any, prefix: str, runtime: Runtime) -> None:
    clients: list[MetaStore] = [driver.client() for _ in range(2)]

    async def add_five(client: MetaStore) -> None:
        for _ in range(5):
            await upsert(client, prefix + "n", COUNTER, lambda n: (n or 0) + 1, runtime=runtime)

    await asyncio.gather(*(add_five(client) for client in clients for _ in range(2)))
    found = await clients[0].get(prefix + "n")
    assert found is not None
    assert found.value == b"20"


# --- list -----------------------------------------------------------------------------------------------------


async def test_a_listing_has_every_key_under_the_prefix_sorted_and_nothing_else(
    store: MetaStore, prefix: str
) -> None:
    names = [f"{prefix}k/{n:03d}" for n in range(25)]
    versions = {name: await store.put(name, name.encode()) for name in reversed(names)}
    for other in (f"{prefix}k", f"{prefix}k0", f"{prefix}j/1", f"{prefix}l/1"):
        await store.put(other, b"other")
    listing = await store.list(prefix + "k/")
    assert listing.items == [Versioned(name, name.encode(), versions[name]) for name in names]


async def test_a_listing_of_nothing_still_has_a_revision_to_watch_from(store: MetaStore, prefix: str) -> None:
    listing = await store.list(prefix)
    version = await store.put(prefix + "a", b"1")
    assert listing.items == []
    assert await take(store.watch(prefix, since=listing.revision), 1) == [Change(prefix + "a", b"1", version)]


async def test_a_listings_revision_is_not_before_its_keys(store: MetaStore, prefix: str) -> None:
    version = await store.put(prefix + "a", b"1")
    assert (await store.list(prefix)).revision >= version


# --- watch ----------------------------------------------------------------------------------------------------


async def test_a_watch_sees_every_later_change_under_its_prefix_in_order(driver: Any, prefix: str) -> None:
    writer, reader = driver.client(), driver.client()
    await writer.put(prefix + "w/old", b"0")
    listing = await reader.list(prefix + "w/")
    watch = reader.watch(prefix + "w/", since=listing.revision)
    expected = []
    for n in range(20):
        key = f"{prefix}w/{n % 3}"
        expected.append(Change(key, b"%d" % n, await writer.put(key, b"%d" % n)))
        await writer.put(f"{prefix}other/{n}", b"not mine")
    await writer.delete(prefix + "w/1")
    seen = await take(watch, 21)
    assert seen[:20] == expected
    assert seen[20][:2] == (prefix + "w/1", None)
    assert seen[20].version > expected[-1].version


async def test_a_waiting_watch_is_woken_by_a_change(driver: Any, prefix: str) -> None:
    writer, reader = driver.client(), driver.client()
    listing = await reader.list(prefix)
    watch = reader.watch(prefix, since=listing.revision)
    waiting = asyncio.ensure_future(anext(watch))
    first = await writer.put(prefix + "a", b"1")
    assert await waiting == Change(prefix + "a", b"1", first)
    waiting = asyncio.ensure_future(anext(watch))
    second = await writer.put(prefix + "b", b"2")
    assert await waiting == Change(prefix + "b", b"2", second)


async def test_a_watch_since_an_older_revision_sees_what_happened_since(store: MetaStore, prefix: str) -> None:
    first = await store.put(prefix + "a", b"1")
    second = await store.put(prefix + "a", b"2")
    await store.delete(prefix + "a")
    third = await store.put(prefix + "b", b"3")
    seen = await take(store.watch(prefix, since=first), 3)
    assert seen == [
        Change(prefix + "a", b"2", second),
        (prefix + "a", None, seen[1].version),
        (prefix + "b", b"3", third),
    ]
    assert second < seen[1].version < third


async def test_watches_are_independent_of_each_other(store: MetaStore, prefix: str) -> None:
    since = (await store.list(prefix)).revision
    all_keys, only_b = store.watch(prefix, since=since), store.watch(prefix + "b", since=since)
    await store.put(prefix + "a", b"1")
    await store.put(prefix + "b", b"2")
    await store.put(prefix + "b", b"3")
    assert [c.value for c in await take(only_b, 2)] == [b"2", b"3"]
    assert [c.value for c in await take(all_keys, 3)] == [b"1", b"2", b"3"]


async def test_closing_the_store_ends_its_watches(store: MetaStore, prefix: str) -> None:
    since = (await store.list(prefix)).revision
    watch = store.watch(prefix, since=since)
    await store.put(prefix + "a", b"1")
    assert (await anext(watch)).key == prefix + "a"
    waiting = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0)
    await store.close()
    assert await waiting is None


async def test_a_closed_client_refuses_to_work(store: MetaStore, prefix: str) -> None:
    await store.close()
    with pytest.raises(MetaError):
        await store.get(prefix)
    with pytest.raises(MetaError):
        await store.put(prefix, b"")
    with pytest.raises(MetaError):
        await store.list(prefix)


#: Ends when it is revoked, and not by itself on a busy machine.
LONG_S = 60.0
#: Is waited for; a machine that stands still for so long would end it too early.
SHORT_S = 3.0


# --- lease ----------------------------------------------------------------------------------------------------


async def test_a_leased_key_lives_while_its_lease_does_and_goes_when_it_is_revoked(
    store: MetaStore, prefix: str
) -> None:
    lease = await store.lease(LONG_S)
    assert lease.alive
    version = await store.put(prefix + "a", b"here", lease=lease)
    await store.put(prefix + "b", b"here", lease=lease)
    assert await store.get(prefix + "a") == Versioned(prefix + "a", b"here", version)
    watch = store.watch(prefix, since=(await store.list(prefix)).revision)
    await lease.revoke()
    assert not lease.alive
    await lease.lost()
    assert (await store.list(prefix)).items == []
    assert sorted((c.key, c.value) for c in await take(watch, 2)) == [(prefix + "a", None), (prefix + "b", None)]


async def test_a_lease_may_be_revoked_twice(store: MetaStore) -> None:
    lease = await store.lease(LONG_S)
    await lease.revoke()
    await lease.revoke()


async def test_nothing_can_be_put_under_a_lease_that_is_gone(store: MetaStore, prefix: str) -> None:
    lease = await store.lease(LONG_S)
    await lease.revoke()
    with pytest.raises(LeaseExpiredError):
        await store.put(prefix + "a", b"1", lease=lease)
    assert await store.get(prefix + "a") is None


@pytest.mark.slow
@SHARED
async def test_a_lease_is_kept_alive_beyond_its_ttl(driver: Any, prefix: str) -> None:
    holder, other = driver.client(), driver.client()
    kept = await holder.lease(SHORT_S)
    await holder.put(prefix + "kept", b"", lease=kept)
    await other.put(prefix + "clock", b"", lease=await other.lease(SHORT_S * 1.5))
    watch = holder.watch(prefix, since=(await holder.list(prefix)).revision)
    await other.close()  # the end of its longer lease tells that the shorter TTL has passed
    await deleted(watch, prefix + "clock")
    assert kept.alive
    assert await holder.get(prefix + "kept") is not None


@pytest.mark.slow
@SHARED
async def test_when_the_holder_stops_its_keys_go_and_it_knew_before(driver: Any, prefix: str) -> None:
    holder, other = driver.client(), driver.client()
    lease = await holder.lease(SHORT_S)
    await holder.put(prefix + "a", b"", lease=lease)
    watch = other.watch(prefix, since=(await other.list(prefix)).revision)
    await holder.close()
    assert await other.get(prefix + "a") is not None, "keys stay until their leases run out"
    await deleted(watch, prefix + "a")
    assert not lease.alive
    await lease.lost()


async def test_a_later_put_takes_the_key_out_of_its_lease(store: MetaStore, prefix: str) -> None:
    first, second = await store.lease(LONG_S), await store.lease(LONG_S)
    await store.put(prefix + "freed", b"1", lease=first)
    await store.put(prefix + "moved", b"1", lease=first)
    await store.put(prefix + "freed", b"2")
    await store.put(prefix + "moved", b"2", lease=second)
    await first.revoke()
    assert [item.key for item in (await store.list(prefix)).items] == [prefix + "freed", prefix + "moved"]
    await second.revoke()
    assert [item.key for item in (await store.list(prefix)).items] == [prefix + "freed"]


async def test_a_conditional_put_under_a_lease_that_conflicts_changes_nothing(
    store: MetaStore, prefix: str
) -> None:
    lease = await store.lease(LONG_S)
    version = await store.put(prefix + "a", b"1")
    with pytest.raises(MetaConflictError):
        await store.put(prefix + "a", b"2", expect=ABSENT, lease=lease)
    await lease.revoke()
    assert await store.get(prefix + "a") == Versioned(prefix + "a", b"1", version)


# --- many keys ------------------------------------------------------------------------------------------------


async def test_many_keys_are_made_at_once_and_those_that_were_there_stay(store: MetaStore, prefix: str) -> None:
    there = await store.put(prefix + "m/007", b"before")
    wanted = [
        Creation(f"{prefix}m/{n:03d}", b"%d" % n, ((f"{prefix}by-number/{n}", b"%03d" % n),)) for n in range(300)
    ]
    made = await store.create_many(wanted)
    assert [n for n, version in enumerate(made) if version == ABSENT] == [7]
    assert await store.get(prefix + "m/007") == Versioned(prefix + "m/007", b"before", there)
    assert await store.get(prefix + "m/123") == Versioned(prefix + "m/123", b"123", made[123])
    assert await store.count(prefix + "m/") == 300
    assert await store.count(prefix + "by-number/") == 299
    assert set(await store.create_many(wanted)) == {ABSENT}


async def test_pages_have_every_key_once_in_order_and_the_last_is_short(store: MetaStore, prefix: str) -> None:
    keys = [f"{prefix}p/{n:03d}" for n in range(23)]
    await store.create_many([Creation(key, b"x") for key in keys])
    await store.put(prefix + "q", b"not under it")
    found: list[str] = []
    sizes = []
    while not sizes or sizes[-1] == 10:
        page = await store.page(prefix + "p/", after=found[-1] if found else "", limit=10)
        found += [item.key for item in page.items]
        sizes.append(len(page.items))
    assert (found, sizes) == (keys, [10, 10, 3])


async def test_a_watch_without_a_memory_sees_every_later_change(store: MetaStore, prefix: str) -> None:
    await store.put(prefix + "w/a", b"1")
    since = (await store.page(prefix + "w/", limit=1)).revision
    changes = store.changes(prefix + "w/", since=since)
    await store.put(prefix + "w/b", b"2")
    await store.delete(prefix + "w/a")
    assert [change[:2] for change in await take(changes, 2)] == [(prefix + "w/b", b"2"), (prefix + "w/a", None)]
