"""The listener for other brokers over real sockets: what a stranger gets out of it, and what it withstands."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from weir.broker.peers.peer_calls import (
    PURPOSE,
    PeerClientSettings,
    PeerCredentials,
    PeerHandlers,
    PeerLimits,
    PeerMetrics,
    PeerServerSettings,
)
from weir.broker.peers.peer_client import PeerPool
from weir.broker.peers.peer_server import PeerServer
from weir.broker.security.cluster_credentials import ClusterCredentialSettings, check_known, load_credentials
from weir.model.cluster import BrokerLoad
from weir.model.errors import (
    ConfigError,
    NetworkError,
    PeerBusyError,
    PeerError,
    PeerFailedError,
    PeerUnavailableError,
    WeirError,
)
from weir.model.ids import Buffer
from weir.model.registry import BrokerInfo
from weir.runtime.budgets import RequestBudget
from weir.runtime.interfaces import Connection
from weir.runtime.node_link import prove
from weir.runtime.real import real_runtime
from weir.testing.certificates import Certificate, make_certificate
from weir.wire.node.frames import FrameSplitter, frame
from weir.wire.node.proof import NONCE_BYTES, ClusterSecret, ProvingClient
from weir.wire.peer import protocol
from weir.wire.peer.calls import AdminAnswer, AdminCall, Done, Ping, ReportLoad
from weir.wire.peer.protocol import Hello, Welcome, decode_failure, decode_welcome, encode_hello, encode_value

SECRET = ClusterSecret(b"s" * 32)
OTHER = ClusterSecret(b"o" * 32)


class Client:
    """The other side, by hand: sends bytes, and takes frames one after the other."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.splitter = FrameSplitter(protocol.MAX_FRAME_BYTES)
        self.received = b""
        self._frames: list[memoryview] = []

    def send(self, *buffers: Buffer) -> None:
        self.connection.write(buffers)

    async def frame(self) -> memoryview:
        while not self._frames:
            data = await self.connection.receive()
            if not data:
                raise NetworkError("end of stream")
            self._frames += self.splitter.feed(data)
        return self._frames.pop(0)

    async def until_the_end(self) -> bytes:
        """Everything that still comes before the connection ends, one way or the other."""
        came = b""
        try:
            while data := await self.connection.receive():
                came += data
        except NetworkError:
            pass
        return came

    async def prove(self, secret: ClusterSecret = SECRET, meant: str = "b", purpose: str = PURPOSE) -> None:
        nonce = real_runtime().rng.randbytes(NONCE_BYTES)
        await prove(self.connection, self.splitter, ProvingClient(secret, purpose, meant, nonce))

    async def enter(self) -> None:
        await self.prove()
        self.send(encode_hello(Hello("a", "b")))
        assert isinstance(decode_welcome(await self.frame()), Welcome)

    async def last_word(self) -> WeirError:
        failed = protocol.decode_response(await self.frame())
        assert (type(failed), failed.request_id) == (protocol.Failed, 0)
        return decode_failure(failed.value)


class Listening:
    """Broker b, and everyone who comes to it."""

    def __init__(
        self, stack: AsyncExitStack, server: PeerServer, handlers: PeerHandlers, seen: PeerMetrics
    ) -> None:
        self._stack = stack
        self.server = server
        self.handlers = handlers
        self.metrics = seen

    async def knock(self) -> Client:
        client = Client(await real_runtime().net.connect("127.0.0.1", self.server.port))
        self._stack.callback(client.connection.abort)
        return client

    async def pool(
        self, credentials: PeerCredentials | None = None, settings: PeerClientSettings | None = None
    ) -> PeerPool:
        registered = [BrokerInfo("b", "1", {"peer": f"127.0.0.1:{self.server.port}"})]
        pool = PeerPool(
            real_runtime(),
            "a",
            PeerHandlers(),
            lambda: registered,
            settings=settings,
            credentials=credentials or PeerCredentials(SECRET),
        )
        self._stack.push_async_callback(pool.close)
        return pool


@asynccontextmanager
async def listening(
    limits: PeerLimits | None = None,
    credentials: PeerCredentials | None = None,
    max_strangers: int = 16,
    request_budget: RequestBudget | None = None,
) -> AsyncIterator[Listening]:
    async with AsyncExitStack() as stack:
        handlers, metrics = PeerHandlers(), PeerMetrics()
        settings = PeerServerSettings(
            limits=limits or PeerLimits(),
            max_connections=50,
            max_strangers=max_strangers,
            sweep_interval_s=0.01,
            close_grace_s=5.0,
        )
        server = PeerServer(
            real_runtime(),
            "b",
            handlers,
            settings,
            credentials=credentials or PeerCredentials(SECRET),
            metrics=metrics,
            request_budget=request_budget,
        )
        await server.start()
        stack.push_async_callback(server.close)
        yield Listening(stack, server, handlers, metrics)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until it holds; the test's own time-out is the limit."""
    while not condition():
        await asyncio.sleep(0.001)


# --- strangers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        encode_hello(Hello("a", "b")),
        frame(b"WPRF" + bytes(200)),
        protocol.encode_request(1, 1, 1000, encode_value(Ping())),
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        (10**6).to_bytes(4, "little") + bytes(2000),
    ],
    ids=["http", "a hello", "a bad proof", "a request", "an empty frame", "a huge size", "a frame over the limit"],
)
async def test_what_is_no_proof_gets_not_a_byte(sent: bytes) -> None:
    async with listening() as b:
        stranger = await b.knock()
        stranger.send(sent)
        assert await stranger.until_the_end() == b""
        assert b.metrics.strangers == 1


async def test_a_wrong_secret_gets_no_more_than_a_random_number() -> None:
    async with listening() as b:
        stranger = await b.knock()
        with pytest.raises(NetworkError):
            await stranger.prove(OTHER)
        assert b.metrics.strangers == 1


@pytest.mark.parametrize(("meant", "purpose"), [("c", PURPOSE), ("b", "bookie")], ids=["node", "kind of link"])
async def test_a_proof_that_is_meant_for_another_does_not_count(meant: str, purpose: str) -> None:
    async with listening() as b:
        stranger = await b.knock()
        with pytest.raises(NetworkError):
            await stranger.prove(meant=meant, purpose=purpose)


async def test_a_replayed_conversation_is_not_let_in() -> None:
    async with listening() as b:
        member, proving = await b.knock(), ProvingClient(SECRET, PURPOSE, "b", b"n" * NONCE_BYTES)
        member.send(proving.begin())
        proof = proving.receive(await member.frame())
        assert proof is not None
        replay = await b.knock()
        replay.send(proving.begin())
        await replay.frame()
        replay.send(proof, encode_hello(Hello("a", "b")))
        assert await replay.until_the_end() == b""


async def test_a_silent_stranger_is_let_go_of() -> None:
    async with listening(PeerLimits(hello_timeout_s=0.05)) as b:
        silent = await b.knock()
        assert await silent.until_the_end() == b""


async def test_one_that_proves_itself_and_then_says_nothing_is_let_go_of() -> None:
    async with listening(PeerLimits(hello_timeout_s=0.2)) as b:
        silent = await b.knock()
        with suppress(NetworkError):  # on a machine that is slower than the time limit
            await silent.prove()
        assert await silent.until_the_end() == b""


async def test_a_torn_frame_at_the_end_of_a_stream_is_nobodys_trouble() -> None:
    async with listening() as b:
        stranger = await b.knock()
        stranger.send(encode_hello(Hello("a", "b"))[:7])
        stranger.connection.close()
        await until(lambda: b.server.connections == 0)
        assert await (await b.pool()).ask("b", Ping()) == Done()


async def test_a_flood_of_strangers_keeps_no_broker_out() -> None:
    async with listening(max_strangers=4) as b:
        flood = [await b.knock() for _ in range(40)]
        assert await (await b.pool()).ask("b", Ping()) == Done()
        await until(lambda: b.server.connections <= 5)
        ended = await asyncio.gather(*(stranger.until_the_end() for stranger in flood[:30]))
        assert set(ended) == {b""}


async def test_a_broker_with_another_secret_learns_what_may_be_the_matter() -> None:
    async with listening() as b:
        with pytest.raises(PeerUnavailableError, match=r"cluster\.secret") as refused:
            await (await b.pool(PeerCredentials(OTHER))).ask("b", Ping())
        assert not refused.value.sent


async def test_a_broker_without_a_secret_is_a_stranger() -> None:
    async with listening() as b:
        with pytest.raises(PeerUnavailableError):
            await (await b.pool(PeerCredentials())).ask("b", Ping())


async def test_a_server_that_does_not_know_the_secret_is_asked_nothing() -> None:
    async with listening(credentials=PeerCredentials(OTHER)) as false:
        with pytest.raises(PeerUnavailableError) as refused:
            await (await false.pool()).ask("b", AdminCall("admin", "GET", "/secret"))
        assert not refused.value.sent
        assert not false.metrics.served.outcomes


# --- certificates ------------------------------------------------------------------------------------------------


async def test_certificates_of_the_clusters_authority_are_enough_and_others_are_not(tmp_path: Path) -> None:
    authority, another = make_certificate(tmp_path, "authority"), make_certificate(tmp_path, "another")

    async def credentials(name: str, issuer: Certificate) -> PeerCredentials:
        made = make_certificate(tmp_path, name, issuer)
        shown = ClusterCredentialSettings("", str(made.file), str(made.key_file), str(authority.file))
        return check_known(await load_credentials(real_runtime().disk, shown))

    ours, others = await credentials("node", authority), await credentials("stranger", another)
    async with listening(credentials=ours) as b:
        assert await (await b.pool(ours)).ask("b", Ping()) == Done()
        for stranger in (others, PeerCredentials(), PeerCredentials(SECRET)):
            with pytest.raises(PeerUnavailableError):
                await (await b.pool(stranger)).ask("b", Ping())


async def test_a_secret_is_read_from_a_file_without_its_line_end(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s" * 32 + b"\n")
    read = await load_credentials(
        real_runtime().disk, ClusterCredentialSettings(secret=f"file:{tmp_path / 'secret'}")
    )
    async with listening() as b:
        assert await (await b.pool(read)).ask("b", Ping()) == Done()


async def test_without_any_credentials_brokers_do_not_listen_to_each_other() -> None:
    with pytest.raises(ConfigError, match="credentials"):
        check_known(await load_credentials(real_runtime().disk, ClusterCredentialSettings()))


# --- brokers of the cluster that go wrong ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [b"\xff\xff\xff\xff", frame(b"\x09" + bytes(30)), protocol.encode_request(0, 1, 1, b"\x80")],
    ids=["a huge size", "an unknown kind", "no number"],
)
async def test_a_broker_that_breaks_the_rules_is_told_which(sent: bytes) -> None:
    async with listening() as b:
        broker = await b.knock()
        await broker.enter()
        broker.send(sent)
        assert str(await broker.last_word())


async def test_a_broker_that_means_another_is_told_who_this_is() -> None:
    async with listening() as b:
        broker = await b.knock()
        await broker.prove()
        broker.send(encode_hello(Hello("a", "c")))
        assert "this is broker b" in str(await broker.last_word())


async def test_a_malformed_or_unknown_request_fails_alone() -> None:
    async with listening() as b:
        broker = await b.knock()
        await broker.enter()
        broker.send(protocol.encode_request(1, 16, 1000, b"\x80"), protocol.encode_request(2, 9999, 1000, b"\x80"))
        broker.send(protocol.encode_request(3, 1, 1000, encode_value(Ping())))
        answers = [protocol.decode_response(await broker.frame()) for _ in range(3)]
        assert sorted((type(a), a.request_id) for a in answers if isinstance(a, protocol.Failed)) == [
            (protocol.Failed, 1),
            (protocol.Failed, 2),
        ]


async def test_too_many_requests_are_refused_as_busy_and_the_rest_is_served() -> None:
    gate = asyncio.Event()

    async def wait(_: ReportLoad) -> BrokerLoad:
        await gate.wait()
        return BrokerLoad("b")

    async with listening(PeerLimits(max_requests=2)) as b:
        b.handlers.on(ReportLoad, wait)
        pool = await b.pool()
        asked = [asyncio.ensure_future(pool.ask("b", ReportLoad())) for _ in range(5)]
        await until(lambda: sum(task.done() for task in asked) == 3)
        gate.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(answer) for answer in answers] == [BrokerLoad] * 2 + [PeerBusyError] * 3


async def test_this_broker_asks_no_more_at_once_than_it_may() -> None:
    gate = asyncio.Event()

    async def wait(_: ReportLoad) -> BrokerLoad:
        await gate.wait()
        return BrokerLoad("b")

    async with listening() as b:
        b.handlers.on(ReportLoad, wait)
        pool = await b.pool(settings=PeerClientSettings(max_requests=2))
        asked = [asyncio.ensure_future(pool.ask("b", ReportLoad())) for _ in range(2)]
        await until(lambda: b.metrics.served.under_way == 2)
        with pytest.raises(PeerBusyError):
            await pool.ask("b", Ping())
        gate.set()
        assert await asyncio.gather(*asked) == [BrokerLoad("b")] * 2


async def test_a_request_or_an_answer_over_the_limit_fails_alone() -> None:
    async def long(call: AdminCall) -> AdminAnswer:
        return AdminAnswer(200, bytes(9000))

    async with listening(PeerLimits(max_frame_bytes=8192)) as b:
        b.handlers.on(AdminCall, long)
        pool = await b.pool()
        with pytest.raises(PeerFailedError, match="exceeds the limit"):
            await pool.ask("b", AdminCall("r", "GET", "/"))
        with pytest.raises(PeerError, match="limit of broker b, 8192 bytes"):
            await pool.ask("b", AdminCall("r", "GET", "/", body=bytes(9000)))
        assert await pool.ask("b", Ping()) == Done()


async def test_large_requests_and_answers_come_whole() -> None:
    async def echo(call: AdminCall) -> AdminAnswer:
        return AdminAnswer(200, call.body)

    async with listening() as b:
        b.handlers.on(AdminCall, echo)
        pool, body = await b.pool(), bytes(range(256)) * 20_000
        answers = await asyncio.gather(*(pool.ask("b", AdminCall("r", "PUT", "/", body=body)) for _ in range(3)))
        assert [answer.body == body for answer in answers] == [True] * 3


async def test_requests_count_in_the_budget_of_all_listeners_until_they_are_answered() -> None:
    gate, budget = asyncio.Event(), RequestBudget(1024 * 1024)

    async def wait(call: AdminCall) -> AdminAnswer:
        await gate.wait()
        return AdminAnswer(200)

    async with listening(request_budget=budget) as b:
        b.handlers.on(AdminCall, wait)
        pool = await b.pool()
        large = AdminCall("r", "PUT", "/", body=bytes(400_000))
        asked = [asyncio.ensure_future(pool.ask("b", large)) for _ in range(3)]
        await until(lambda: budget.waiting == 1)  # the connection is not read until there is capacity for the next
        assert budget.used_bytes >= 400_000
        assert b.metrics.served.under_way < 3
        gate.set()
        assert await asyncio.gather(*asked) == [AdminAnswer(200)] * 3
        await until(lambda: budget.used_bytes == 0)


async def test_a_server_that_closes_answers_what_it_took() -> None:
    gate = asyncio.Event()

    async def wait(_: ReportLoad) -> BrokerLoad:
        await gate.wait()
        return BrokerLoad("b")

    async with listening(PeerLimits()) as b:
        b.handlers.on(ReportLoad, wait)
        pool = await b.pool()
        asked = asyncio.ensure_future(pool.ask("b", ReportLoad()))
        await until(lambda: b.metrics.served.under_way == 1)
        closing = asyncio.ensure_future(b.server.close())
        gate.set()
        assert await asked == BrokerLoad("b")
        await closing
        with pytest.raises(PeerUnavailableError):
            await pool.ask("b", Ping())
