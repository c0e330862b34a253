"""The loop of a server, with sessions that do nothing but live, in simulated time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from weir.model.errors import ConnectionLostError, TooManyError, TopicClosedError, WeirError
from weir.runtime.interfaces import Connection, Runtime
from weir.runtime.server import Server, ServingSettings
from weir.testing.world.world import World, simulate


class Idle:
    """A session that lives until it is ended, and for a while longer."""

    lasts_s = 0.0
    overdue_because: str | None = None

    def __init__(self, connection: Connection, runtime: Runtime) -> None:
        self.connection = connection
        self.why: WeirError | None = None
        self.aborted = False
        self._clock = runtime.clock
        self._ended = asyncio.Event()

    @property
    def peer(self) -> str:
        return self.connection.peer

    async def run(self) -> None:
        await self._ended.wait()
        if not self.aborted:
            await self._clock.sleep(self.lasts_s)
        self.connection.close()

    def end(self, why: WeirError) -> None:
        self.why = why
        self._ended.set()

    def abort(self) -> None:
        self.aborted = True
        self.connection.abort()
        self._ended.set()

    def overdue(self, now: float) -> str | None:
        return self.overdue_because


Scenario = Callable[[Server[Idle], Runtime], Coroutine[Any, Any, None]]


def serve(scenario: Scenario, kind: type[Idle] = Idle, **settings: Any) -> list[Idle]:
    """Run a server; answers the sessions that it had."""
    made: list[Idle] = []

    async def run(world: World) -> None:
        async def main(runtime: Runtime) -> None:
            def session(connection: Connection) -> Idle:
                made.append(kind(connection, runtime))
                return made[-1]

            server = Server(runtime, "test", ServingSettings("server", 9000, **settings), session)
            await server.start()
            await world.node("client").start(lambda its: scenario(server, its))
            await server.close(TopicClosedError("it is over"))
            assert server.sessions == []

        await world.node("server").start(main)

    simulate(1, run)
    return made


async def connect(runtime: Runtime) -> Connection:
    return await runtime.net.connect("server", 9000)


def test_a_session_is_made_for_each_connection_and_told_why_it_ends() -> None:
    async def scenario(server: Server[Idle], runtime: Runtime) -> None:
        for _ in range(3):
            await connect(runtime)
        await runtime.clock.sleep(0.1)
        assert len(server.sessions) == 3

    made = serve(scenario)
    assert [str(session.why).startswith("it is over") for session in made] == [True] * 3
    assert not any(session.aborted for session in made)


def test_connections_over_the_limit_are_told_so_and_far_over_it_they_just_break() -> None:
    async def scenario(server: Server[Idle], runtime: Runtime) -> None:
        first = await connect(runtime)
        await runtime.clock.sleep(0.1)
        second = await connect(runtime)
        assert await second.receive() == b""
        await runtime.clock.sleep(0.1)
        assert [session.connection.peer for session in server.sessions] == [server.sessions[0].peer]
        first.close()

    made = serve(scenario, max_connections=1)
    assert isinstance(made[1].why, TooManyError)


def test_a_session_that_is_overdue_is_ended_by_force() -> None:
    class Overdue(Idle):
        overdue_because = "it is silent"

    async def scenario(server: Server[Overdue], runtime: Runtime) -> None:
        connection = await connect(runtime)
        with pytest.raises(ConnectionLostError):
            await connection.receive()

    (session,) = serve(scenario, Overdue)
    assert session.aborted


def test_sessions_that_take_too_long_to_end_are_ended_by_force() -> None:
    class Slow(Idle):
        lasts_s = 1000.0

        async def run(self) -> None:
            finishing = asyncio.ensure_future(super().run())
            while not self.aborted and not finishing.done():
                await self._clock.sleep(0.1)
            finishing.cancel()

    async def scenario(server: Server[Slow], runtime: Runtime) -> None:
        await connect(runtime)
        await runtime.clock.sleep(0.1)

    (session,) = serve(scenario, Slow, close_grace_s=2.0)
    assert session.aborted
    assert session.why is not None
