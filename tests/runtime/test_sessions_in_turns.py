"""Whatever one connection of any listener sends at once, others have their turn in between."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from weir.bookie.server import BookieServer, ServerSettings
from weir.broker.peers import peer_server as peer_session
from weir.broker.peers.peer_calls import PeerHandlers, PeerServerSettings
from weir.broker.peers.peer_server import PeerServer
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.rest.http import Admission, HttpServer, HttpSettings, Request, Response
from weir.runtime.interfaces import Runtime
from weir.testing.storage.fakes import FakeBookie
from weir.testing.world.world import World, simulate
from weir.wire import bookie as wire
from weir.wire.bookie import Hello, encode_hello
from weir.wire.node.frames import FrameSplitter
from weir.wire.peer import protocol
from weir.wire.peer import protocol as peer_hello
from weir.wire.peer.call_table import call_named
from weir.wire.peer.protocol import Call

MANY = 2000


Main = Callable[[Runtime], Coroutine[Any, Any, Any]]


def play(serve: Main, talk: Main) -> None:
    async def scenario(world: World) -> None:
        async def main(runtime: Runtime) -> None:
            server = await serve(runtime)
            await world.node("client").start(talk)
            await server.close()

        await world.node("server").start(main)

    simulate(1, scenario)


class Steps:
    """How often something happened in one step of the simulated loop."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def note(self) -> None:
        at = asyncio.get_running_loop().steps  # type: ignore[attr-defined]
        self._seen[at] = self._seen.get(at, 0) + 1

    @property
    def total(self) -> int:
        return sum(self._seen.values())

    @property
    def most(self) -> int:
        return max(self._seen.values())


def test_requests_on_one_http_connection_are_answered_one_per_turn() -> None:
    steps = Steps()

    async def admit(_request: Request) -> Admission:
        async def answer(_request: Request) -> Response:
            steps.note()
            return Response(204)

        return Admission(0, answer)

    async def serve(runtime: Runtime) -> HttpServer:
        server = HttpServer(runtime, HttpSettings("server", 80), admit)
        await server.start()
        return server

    async def talk(runtime: Runtime) -> None:
        connection = await runtime.net.connect("server", 80)
        connection.write([b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * MANY])
        heard = b""
        while heard.count(b"HTTP/1.1 204") < MANY:
            heard += bytes(await connection.receive())

    play(serve, talk)
    assert (steps.total, steps.most) == (MANY, 1)


def test_requests_of_one_client_of_a_bookie_are_cut_into_turns() -> None:
    steps = Steps()

    class Counted(FakeBookie):
        def confirm(self, ledger_id: LedgerId, last_confirmed: int) -> None:
            steps.note()

    async def serve(runtime: Runtime) -> BookieServer:
        server = BookieServer(runtime, Counted(), BookieId("b"), ServerSettings("server", 3181))
        await server.start()
        return server

    async def talk(runtime: Runtime) -> None:
        connection = await runtime.net.connect("server", 3181)
        connection.write([encode_hello(Hello(BookieId("b")))])
        await connection.receive()
        connection.write([*[wire.encode_confirm(LedgerId(1), EntryId(1))] * MANY, wire.encode_ping(7)])
        await connection.receive()

    play(serve, talk)
    assert steps.total == MANY
    assert steps.most <= 256


def test_requests_of_another_broker_are_cut_into_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()

    def counted(number: int) -> Call[Any]:
        steps.note()
        return call_named(number)

    monkeypatch.setattr(peer_session, "call_named", counted)

    async def serve(runtime: Runtime) -> PeerServer:
        server = PeerServer(runtime, "b", PeerHandlers(), PeerServerSettings("server", 6670))
        await server.start()
        return server

    async def talk(runtime: Runtime) -> None:
        connection = await runtime.net.connect("server", 6670)
        connection.write([peer_hello.encode_hello(peer_hello.Hello("a", "b"))])
        await connection.receive()
        connection.write([protocol.encode_request(n, 9999, 1000, b"") for n in range(1, MANY + 1)])
        splitter, answers = FrameSplitter(protocol.MAX_FRAME_BYTES), 0
        while answers < MANY:
            answers += len(list(splitter.feed(await connection.receive())))

    play(serve, talk)
    assert steps.total == MANY
    assert steps.most <= 256
