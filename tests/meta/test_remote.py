"""A served metadata store: its links break, it forgets, it is opened anew, and strangers come."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from weir.meta.embedded import open_embedded
from weir.meta.interfaces import Change
from weir.meta.key_space import KeySpace
from weir.meta.local import LocalCore, MemoryCore, MemoryMeta
from weir.meta.remote_server import MetaServer, MetaServerSettings
from weir.meta.remote_store import RemoteMeta, RemoteSettings
from weir.model.errors import LeaseExpiredError, MetaError, MetaUnavailableError
from weir.runtime.interfaces import Runtime
from weir.testing.proxy import Proxy
from weir.wire import meta as hello
from weir.wire import meta as requests
from weir.wire.node.proof import ClusterSecret

pytestmark = pytest.mark.timeout(60)
SECRET = ClusterSecret(b"the cluster's" * 3)


@pytest.fixture
def core(runtime: Runtime) -> LocalCore:
    return MemoryCore(runtime.clock, KeySpace(history=8))


@pytest.fixture
async def server(runtime: Runtime, core: LocalCore) -> AsyncIterator[MetaServer]:
    server = MetaServer(runtime, core, MetaServerSettings(secret=SECRET))
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def proxy(runtime: Runtime, server: MetaServer) -> AsyncIterator[Proxy]:
    proxy = Proxy(runtime, server.port)
    await proxy.start()
    yield proxy
    await proxy.close()


@pytest.fixture
async def store(runtime: Runtime, proxy: Proxy) -> AsyncIterator[RemoteMeta]:
    store = RemoteMeta(runtime, RemoteSettings("127.0.0.1", proxy.port, SECRET))
    yield store
    await store.close()


@pytest.fixture
def direct(runtime: Runtime, core: LocalCore) -> MemoryMeta:
    return MemoryMeta(core, runtime)


async def until(watch: AsyncIterator[Change], value: bytes) -> list[Change]:
    seen = []
    async for change in watch:
        seen.append(change)
        if change.value == value:
            break
    return seen


async def test_a_watch_misses_nothing_and_repeats_nothing_when_its_link_is_cut(
    runtime: Runtime, tmp_path: Path
) -> None:
    direct = await open_embedded(runtime, f"{tmp_path}/meta")
    server = MetaServer(runtime, direct.core, MetaServerSettings())
    await server.start()
    proxy = Proxy(runtime, server.port)
    await proxy.start()
    store = RemoteMeta(runtime, RemoteSettings("127.0.0.1", proxy.port))
    watch = store.watch("/", since=(await store.list("/")).revision)
    waiting = asyncio.ensure_future(until(watch, b"last"))
    expected = []
    for n in range(60):
        if n % 10 == 5:
            proxy.cut()
        expected.append(Change(f"/{n % 7}", b"%d" % n, await direct.put(f"/{n % 7}", b"%d" % n)))
    expected.append(Change("/z", b"last", await direct.put("/z", b"last")))
    assert await waiting == expected
    await store.close()
    await proxy.close()
    await server.close()
    await direct.close()


async def test_a_watch_catches_up_when_the_store_forgot_deletions_included(
    store: RemoteMeta, direct: MemoryMeta, proxy: Proxy
) -> None:
    for name in ("listed", "kept"):
        await direct.put(f"/{name}", b"old")
    watch = store.watch("/", since=(await store.list("/")).revision)
    await direct.put("/reported", b"seen")
    assert len(await until(watch, b"seen")) == 1
    proxy.freeze()
    waiting = asyncio.ensure_future(anext(watch))
    await direct.delete("/listed")
    await direct.delete("/reported")
    await direct.put("/new", b"latest")
    for n in range(40):
        await direct.put("/busy", b"%d" % n)
    proxy.cut()
    proxy.thaw()
    seen = {change.key: change.value for change in [await waiting, *[await anext(watch) for _ in range(3)]]}
    assert seen == {"/listed": None, "/reported": None, "/new": b"latest", "/busy": b"39"}


async def test_a_watch_without_a_listing_hears_of_deletions_that_the_store_forgot(
    store: RemoteMeta, direct: MemoryMeta, proxy: Proxy
) -> None:
    since = await direct.put("/old", b"1")
    watch = store.watch("/", since=since)
    await direct.put("/a", b"seen")
    assert len(await until(watch, b"seen")) == 1
    proxy.freeze()
    waiting = asyncio.ensure_future(until(watch, b"39"))
    await direct.delete("/old")
    for n in range(40):
        await direct.put("/busy", b"%d" % n)
    proxy.cut()
    proxy.thaw()
    seen = await waiting
    if all(change.key != "/old" for change in seen):  # it comes behind what is still there
        seen.append(await anext(watch))
    assert ("/old", None) in [change[:2] for change in seen]


async def test_a_question_outlives_its_link_and_a_change_is_not_sent_twice(
    store: RemoteMeta, core: LocalCore, proxy: Proxy
) -> None:
    await store.put("/a", b"1")
    proxy.freeze()
    reading = asyncio.ensure_future(store.get("/a"))
    writing = asyncio.ensure_future(store.put("/a", b"2"))
    await asyncio.sleep(0)
    proxy.cut()
    with pytest.raises(MetaUnavailableError):
        await writing
    proxy.thaw()
    found = await reading
    assert found is not None
    assert core.state.revision <= 2


async def test_a_store_that_stays_silent_is_unavailable_and_the_next_question_gets_a_new_link(
    runtime: Runtime, proxy: Proxy
) -> None:
    settings = RemoteSettings("127.0.0.1", proxy.port, SECRET, request_timeout_s=0.2)
    impatient = RemoteMeta(runtime, settings)
    patient = RemoteMeta(runtime, replace(settings, request_timeout_s=30))
    assert await patient.get("/a") is None
    proxy.freeze()
    with pytest.raises(MetaUnavailableError):
        await impatient.get("/a")
    proxy.thaw()
    assert await patient.get("/a") is None
    await impatient.close()
    await patient.close()


async def test_nobody_there_is_unavailable(runtime: Runtime) -> None:
    listener = await runtime.net.listen("127.0.0.1", 0)
    listener.close()
    store = RemoteMeta(runtime, RemoteSettings("127.0.0.1", listener.port, request_timeout_s=0.1))
    with pytest.raises(MetaUnavailableError, match=str(listener.port)):
        await store.get("/a")
    await store.close()


async def test_a_lease_ends_as_soon_as_its_holder_meets_the_store_opened_anew(
    runtime: Runtime, tmp_path: Path
) -> None:
    embedded = await open_embedded(runtime, f"{tmp_path}/meta")
    server = MetaServer(runtime, embedded.core, MetaServerSettings())
    await server.start()
    store = RemoteMeta(runtime, RemoteSettings("127.0.0.1", server.port))
    lease = await store.lease(60.0)
    await store.put("/mine", b"", lease=lease)
    kept = await store.put("/kept", b"")
    watch = store.watch("/", since=kept)
    waiting = asyncio.ensure_future(until(watch, b"again"))
    where = server.port
    await server.close()
    await embedded.close()

    embedded = await open_embedded(runtime, f"{tmp_path}/meta")
    server = MetaServer(runtime, embedded.core, MetaServerSettings(port=where))
    await server.start()
    await lease.lost()
    assert not lease.alive
    with pytest.raises(LeaseExpiredError):
        await store.put("/mine", b"", lease=lease)
    assert await store.get("/mine") is None
    assert await store.get("/kept") == ("/kept", b"", kept)
    await store.put("/kept", b"again")
    assert [change[:2] for change in await waiting] == [("/mine", None), ("/kept", b"again")]
    await lease.revoke()
    await store.close()
    await server.close()
    await embedded.close()


async def test_the_number_of_a_lease_of_the_store_before_is_nobodys(
    runtime: Runtime, core: LocalCore, server: MetaServer, store: RemoteMeta
) -> None:
    """Also where the holder did not notice: the store counts its leases from one each time."""
    lease = await store.lease(60.0)
    other = MetaServer(runtime, MemoryCore(runtime.clock), MetaServerSettings(secret=SECRET))
    await other.start()
    elsewhere = RemoteMeta(runtime, RemoteSettings("127.0.0.1", other.port, SECRET))
    theirs = await elsewhere.lease(60.0)
    await elsewhere.put("/theirs", b"", lease=theirs)
    with pytest.raises(LeaseExpiredError):
        await elsewhere.put("/a", b"", lease=lease)
    answer = await elsewhere._client.ask(
        lambda n: requests.Renew(n, lease.lease_id),  # type: ignore[attr-defined]
        repeatable=True,
    )
    assert answer[0][2] is False
    await elsewhere._client.ask(
        lambda n: requests.Revoke(n, lease.lease_id),  # type: ignore[attr-defined]
        repeatable=True,
    )
    assert await elsewhere.get("/theirs") is not None
    await elsewhere.close()
    await other.close()


async def test_a_listing_longer_than_a_frame_arrives_whole(store: RemoteMeta, direct: MemoryMeta) -> None:
    names = [f"/big/{n:02d}" for n in range(12)]
    for name in names:
        await direct.put(name, name.encode() * 60_000)
    listing = await store.list("/big/")
    assert [item.key for item in listing.items] == names
    assert all(item.value == item.key.encode() * 60_000 for item in listing.items)


# --- strangers ----------------------------------------------------------------------------------------------


async def test_a_client_with_another_secret_is_told_so_and_gets_nothing(
    runtime: Runtime, server: MetaServer, direct: MemoryMeta
) -> None:
    await direct.put("/a", b"secret")
    guess = ClusterSecret(b"guessed" * 9)
    stranger = RemoteMeta(runtime, RemoteSettings("127.0.0.1", server.port, guess, request_timeout_s=5.0))
    with pytest.raises(MetaUnavailableError, match="secret"):
        await stranger.get("/a")
    await stranger.close()


@pytest.mark.parametrize(
    "sent",
    [
        [requests.encode_request(requests.Get(1, "/a"))],
        [hello.encode_hello(hello.Hello()), requests.encode_request(requests.Get(1, "/a"))],
        [b"GET / HTTP/1.1\r\n\r\n"],
    ],
    ids=["no hello", "no proof", "another protocol"],
)
async def test_a_stranger_is_shown_the_door_without_a_word(
    runtime: Runtime, server: MetaServer, sent: list[bytes]
) -> None:
    connection = await runtime.net.connect("127.0.0.1", server.port)
    connection.write(sent)
    assert await connection.receive() == b""


async def test_a_server_that_does_not_know_the_secret_is_told_nothing(runtime: Runtime) -> None:
    other = MetaServer(runtime, MemoryCore(runtime.clock), MetaServerSettings(secret=ClusterSecret(b"other" * 9)))
    await other.start()
    settings = RemoteSettings("127.0.0.1", other.port, SECRET, request_timeout_s=0.3)
    store = RemoteMeta(runtime, settings)
    with pytest.raises(MetaError):
        await store.put("/a", b"")
    assert await other._core.read("/a") is None
    await store.close()
    await other.close()


async def test_a_client_that_floods_is_still_answered_in_full(runtime: Runtime, server: MetaServer) -> None:
    patient = RemoteSettings("127.0.0.1", server.port, SECRET, request_timeout_s=50.0)  # on a slow machine, too
    store = RemoteMeta(runtime, patient)
    await asyncio.gather(*(store.put(f"/{n}", b"") for n in range(3000)))
    assert len((await store.list("/")).items) == 3000
    await store.close()
