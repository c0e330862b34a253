"""What only a real etcd can show: it dies, forgets, falls silent, and its clients' connections break."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from weir.meta.etcd import EtcdClient, EtcdMeta
from weir.meta.interfaces import Change
from weir.model.errors import MetaUnavailableError
from weir.runtime.interfaces import Runtime
from weir.testing.proxy import Proxy

pytestmark = [pytest.mark.timeout(60), pytest.mark.process]


@pytest.fixture
async def proxy(runtime: Runtime, etcd_server: Any) -> AsyncIterator[Proxy]:
    proxy = Proxy(runtime, etcd_server.port)
    await proxy.start()
    yield proxy
    await proxy.close()


@pytest.fixture
async def direct(runtime: Runtime, etcd_server: Any) -> AsyncIterator[EtcdMeta]:
    store = EtcdMeta(runtime, etcd_server.settings)
    yield store
    await store.close()


@pytest.fixture
async def proxied(runtime: Runtime, etcd_server: Any, proxy: Proxy) -> AsyncIterator[EtcdMeta]:
    settings = replace(etcd_server.settings, endpoints=(("127.0.0.1", proxy.port),), watch_renew_s=0.5)
    store = EtcdMeta(runtime, settings)
    yield store
    await store.close()


async def until(watch: AsyncIterator[Change], value: bytes) -> list[Change]:
    seen = []
    async for change in watch:
        seen.append(change)
        if change.value == value:
            break
    return seen


async def compact(runtime: Runtime, server: Any, revision: int) -> None:
    client = EtcdClient(runtime, server.settings)
    await client.ask("/v3/kv/compaction", b'{"revision":"%d"}' % revision, len, repeatable=True)
    client.close()


async def test_a_watch_misses_nothing_when_etcd_is_killed_and_restarted_under_it(
    runtime: Runtime, own_etcd: Any, prefix: str
) -> None:
    store = EtcdMeta(runtime, own_etcd.settings)
    watch = store.watch(prefix, since=(await store.list(prefix)).revision)
    expected = [Change(prefix + "a", b"0", await store.put(prefix + "a", b"0"))]
    assert await until(watch, b"0") == expected
    for round_ in (b"1", b"2"):
        waiting = asyncio.ensure_future(until(watch, b"last" + round_))
        expected = [Change(prefix + "b", round_, await store.put(prefix + "b", round_))]
        own_etcd.kill()
        own_etcd.start()
        writer = EtcdMeta(runtime, own_etcd.settings)  # changes while the watch is still on its way back
        for n in range(5):
            expected.append(Change(prefix + "c", b"%d" % n, await writer.put(prefix + "c", b"%d" % n)))
        value = b"last" + round_
        expected.append(Change(prefix + "a", value, await writer.put(prefix + "a", value)))
        assert await waiting == expected
        await writer.close()
    await store.close()


async def test_a_watch_misses_nothing_and_repeats_nothing_when_its_connection_is_cut(
    proxied: EtcdMeta, direct: EtcdMeta, proxy: Proxy, prefix: str
) -> None:
    watch = proxied.watch(prefix, since=(await proxied.list(prefix)).revision)
    waiting = asyncio.ensure_future(until(watch, b"last"))
    expected = []
    for n in range(60):
        if n % 10 == 5:
            proxy.cut()
        key = f"{prefix}{n % 7}"
        expected.append(Change(key, b"%d" % n, await direct.put(key, b"%d" % n)))
    expected.append(Change(prefix + "z", b"last", await direct.put(prefix + "z", b"last")))
    assert await waiting == expected


async def test_a_watch_on_a_connection_that_died_without_a_sign_finds_a_new_one(
    proxied: EtcdMeta, direct: EtcdMeta, proxy: Proxy, prefix: str
) -> None:
    watch = proxied.watch(prefix, since=(await proxied.list(prefix)).revision)
    await direct.put(prefix + "a", b"seen")
    assert len(await until(watch, b"seen")) == 1
    proxy.freeze()
    await direct.put(prefix + "a", b"missed")
    waiting = asyncio.ensure_future(until(watch, b"after"))
    with pytest.raises(MetaUnavailableError):
        await proxied.get(prefix + "a")
    proxy.thaw()
    await direct.put(prefix + "a", b"after")
    assert [change.value for change in await waiting] == [b"missed", b"after"]


async def test_a_watch_catches_up_across_a_compaction_deletions_included(
    proxied: EtcdMeta, direct: EtcdMeta, proxy: Proxy, runtime: Runtime, etcd_server: Any, prefix: str
) -> None:
    for name in ("listed", "kept", "both"):
        await direct.put(prefix + name, b"old")
    watch = proxied.watch(prefix, since=(await proxied.list(prefix)).revision)
    await direct.put(prefix + "reported", b"seen")
    assert len(await until(watch, b"seen")) == 1
    proxy.freeze()
    for name in ("listed", "reported", "both"):
        await direct.delete(prefix + name)
    both = await direct.put(prefix + "both", b"again")
    await direct.put(prefix + "new", b"merged away")
    new = await direct.put(prefix + "new", b"latest")
    await direct.put(prefix + "brief", b"")
    await direct.delete(prefix + "brief")
    last = await direct.put("/elsewhere", b"")
    await compact(runtime, etcd_server, last)
    proxy.cut()
    proxy.thaw()
    seen = {change.key: change for change in [await anext(watch) for _ in range(4)]}
    assert seen[prefix + "both"] == Change(prefix + "both", b"again", both)
    assert seen[prefix + "new"] == Change(prefix + "new", b"latest", new)
    assert seen[prefix + "listed"].value is None
    assert seen[prefix + "reported"].value is None
    assert prefix + "kept" not in seen


async def test_a_deletion_between_a_listing_and_a_watch_since_it_arrives_even_if_compacted(
    direct: EtcdMeta, runtime: Runtime, etcd_server: Any, prefix: str
) -> None:
    await direct.put(prefix + "a", b"1")
    listing = await direct.list(prefix)
    await direct.delete(prefix + "a")
    last = await direct.put("/elsewhere", b"")
    await compact(runtime, etcd_server, last)
    change = await anext(direct.watch(prefix, since=listing.revision))
    assert (change.key, change.value) == (prefix + "a", None)


async def test_a_watch_takes_messages_that_etcd_must_send_in_fragments(direct: EtcdMeta, prefix: str) -> None:
    since = (await direct.list(prefix)).revision
    expected = []
    for n in range(6):
        value = bytes([n]) * 900_000
        expected.append(Change(f"{prefix}{n % 2}", value, await direct.put(f"{prefix}{n % 2}", value)))
    watch = direct.watch(prefix, since=since)
    assert [await anext(watch) for _ in expected] == expected


async def test_keys_of_one_lease_that_go_in_one_revision_are_each_reported(direct: EtcdMeta, prefix: str) -> None:
    lease = await direct.lease(5)
    for n in range(50):
        await direct.put(f"{prefix}{n:02d}", b"", lease=lease)
    watch = direct.watch(prefix, since=(await direct.list(prefix)).revision)
    await lease.revoke()
    gone = [await anext(watch) for _ in range(50)]
    assert sorted(change.key for change in gone) == [f"{prefix}{n:02d}" for n in range(50)]
    assert len({change.version for change in gone}) == 1


async def test_a_put_whose_reply_is_lost_is_unavailable_though_it_was_made(
    proxied: EtcdMeta, direct: EtcdMeta, runtime: Runtime, etcd_server: Any, prefix: str
) -> None:
    listener = await runtime.net.listen("127.0.0.1", 0)
    settings = replace(etcd_server.settings, endpoints=(("127.0.0.1", listener.port),), request_timeout_s=1.0)
    store = EtcdMeta(runtime, settings)
    put = asyncio.ensure_future(store.put(prefix + "a", b"1"))
    near = await listener.accept()
    far = await runtime.net.connect("127.0.0.1", etcd_server.port)
    far.write([await near.receive()])
    with pytest.raises(MetaUnavailableError):
        await put
    await until(direct.watch(prefix, since=0), b"1")
    await store.close()


async def test_the_next_endpoint_is_asked_when_one_does_not_answer(
    runtime: Runtime, etcd_server: Any, prefix: str
) -> None:
    silent = await runtime.net.listen("127.0.0.1", 0)
    refusing = await runtime.net.listen("127.0.0.1", 0)
    refusing.close()
    settings = replace(
        etcd_server.settings,
        endpoints=(("127.0.0.1", refusing.port), ("127.0.0.1", silent.port), ("127.0.0.1", etcd_server.port)),
        request_timeout_s=8.0,  # also of the one that answers
    )
    store = EtcdMeta(runtime, settings)
    assert await store.get(prefix + "a") is None
    version = await store.put(prefix + "a", b"1")
    assert await until(store.watch(prefix, since=version - 1), b"1") == [Change(prefix + "a", b"1", version)]
    await store.close()
    silent.close()


async def test_no_endpoint_that_answers_is_unavailable(runtime: Runtime, etcd_server: Any) -> None:
    listener = await runtime.net.listen("127.0.0.1", 0)
    listener.close()
    store = EtcdMeta(runtime, replace(etcd_server.settings, endpoints=(("127.0.0.1", listener.port),)))
    with pytest.raises(MetaUnavailableError):
        await store.put("/a", b"")
    await store.close()


async def test_a_server_that_is_not_etcd_is_unavailable(runtime: Runtime, etcd_server: Any) -> None:
    listener = await runtime.net.listen("127.0.0.1", 0)
    store = EtcdMeta(runtime, replace(etcd_server.settings, endpoints=(("127.0.0.1", listener.port),)))
    for nonsense in (
        b"220 smtp ready\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 502 no\r\n\r\n",
    ):
        asked = asyncio.ensure_future(store.get("/a"))
        connection = await listener.accept()
        await connection.receive()
        connection.write([nonsense])
        connection.close()
        with pytest.raises(MetaUnavailableError):
            await asked
    await store.close()


async def test_a_holder_that_cannot_reach_etcd_stops_trusting_its_lease(
    proxied: EtcdMeta, direct: EtcdMeta, proxy: Proxy, prefix: str
) -> None:
    lease = await proxied.lease(3)
    await proxied.put(prefix + "a", b"", lease=lease)
    watch = direct.watch(prefix, since=(await direct.list(prefix)).revision)
    proxy.freeze()
    await lease.lost()
    assert await direct.get(prefix + "a") is not None, "it knew before the key went"
    assert (await anext(watch)).value is None
    proxy.thaw()
    assert not lease.alive


HOLDER = """
import asyncio, sys
from weir.meta.connect import connect
from weir.runtime.real import run

async def main(runtime):
    store = await connect(sys.argv[1], runtime)
    await store.put(sys.argv[2], b"here", lease=await store.lease(3))
    print("held", flush=True)
    await asyncio.Event().wait()

run(main)
"""


async def test_a_lease_expires_when_the_process_that_holds_it_is_killed(
    direct: EtcdMeta, etcd_server: Any, prefix: str
) -> None:
    url = f"etcd://127.0.0.1:{etcd_server.port}"
    with subprocess.Popen([sys.executable, "-c", HOLDER, url, prefix + "a"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        watch = direct.watch(prefix, since=(await direct.list(prefix)).revision)
        assert await direct.get(prefix + "a") is not None
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    change = await anext(watch)
    assert (change.key, change.value) == (prefix + "a", None)
