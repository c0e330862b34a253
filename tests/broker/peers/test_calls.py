"""Asking another broker: what every way to do so promises, over real sockets and within one process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from weir.broker.peers.peer_calls import LonePeers, PeerCalls, PeerCredentials, PeerHandlers, PeerServerSettings
from weir.broker.peers.peer_client import PeerPool
from weir.broker.peers.peer_server import PeerServer
from weir.model.errors import (
    InvariantError,
    NotOwnerError,
    PeerFailedError,
    PeerUnavailableError,
    PeerUnsupportedError,
    TopicNotFoundError,
)
from weir.model.registry import BrokerInfo
from weir.runtime.real import real_runtime
from weir.testing.in_process_peers import InProcessPeers
from weir.wire.node.proof import ClusterSecret
from weir.wire.peer.calls import Done, Ping, ReportLoad

SECRET = ClusterSecret(b"s" * 32)


class Pair:
    """Broker a, which asks, and broker b, whose handlers a test sets."""

    def __init__(self, asking: PeerCalls, answering: PeerHandlers) -> None:
        self.asking = asking
        self.answering = answering


async def over_sockets(stack: AsyncExitStack) -> Pair:
    runtime, credentials = real_runtime(), PeerCredentials(SECRET)
    answering, registered = PeerHandlers(), [BrokerInfo("a", "1")]
    server = PeerServer(runtime, "b", answering, PeerServerSettings(), credentials=credentials)
    await server.start()
    stack.push_async_callback(server.close)
    registered.append(BrokerInfo("b", "1", {"peer": f"127.0.0.1:{server.port}"}))
    pool = PeerPool(runtime, "a", PeerHandlers(), lambda: registered, credentials=credentials)
    stack.push_async_callback(pool.close)
    return Pair(pool, answering)


async def in_process(stack: AsyncExitStack) -> Pair:
    peers, answering = InProcessPeers(), PeerHandlers()
    peers.join("b", answering)
    return Pair(peers.join("a", PeerHandlers()), answering)


@pytest.fixture(params=[over_sockets, in_process], ids=lambda make: make.__name__)
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    make: Callable[[AsyncExitStack], Awaitable[Pair]] = request.param
    async with AsyncExitStack() as stack:
        yield await make(stack)


async def test_a_request_is_answered_by_its_handler(pair: Pair) -> None:
    assert await pair.asking.ask("b", Ping()) == Done()


async def test_many_requests_at_once_each_get_their_own_answer(pair: Pair) -> None:
    assert await asyncio.gather(*(pair.asking.ask("b", Ping()) for _ in range(200))) == [Done()] * 200


async def test_an_error_comes_as_its_class_with_what_it_says(pair: Pair) -> None:
    async def refuse(_: ReportLoad) -> Any:
        raise TopicNotFoundError("there is no topic x", hint="make it")

    pair.answering.on(ReportLoad, refuse)
    with pytest.raises(TopicNotFoundError, match="there is no topic x") as refused:
        await pair.asking.ask("b", ReportLoad())
    assert refused.value.hint == "make it"


async def test_an_error_keeps_where_the_owner_is(pair: Pair) -> None:
    async def refuse(_: ReportLoad) -> Any:
        raise NotOwnerError("c has it", listeners={"kafka": "c:9092"})

    pair.answering.on(ReportLoad, refuse)
    with pytest.raises(NotOwnerError) as refused:
        await pair.asking.ask("b", ReportLoad())
    assert refused.value.listeners == {"kafka": "c:9092"}


async def test_what_is_no_error_of_ours_says_nothing_of_the_other_brokers_insides(pair: Pair) -> None:
    async def fail(_: ReportLoad) -> Any:
        raise KeyError("/etc/secret/path")

    pair.answering.on(ReportLoad, fail)
    with pytest.raises(PeerFailedError) as failed:
        await pair.asking.ask("b", ReportLoad())
    assert "secret" not in str(failed.value)


async def test_what_no_part_answers_is_unsupported(pair: Pair) -> None:
    with pytest.raises(PeerUnsupportedError, match="load"):
        await pair.asking.ask("b", ReportLoad())


async def test_a_broker_that_nobody_knows_was_sent_nothing(pair: Pair) -> None:
    with pytest.raises(PeerUnavailableError) as unknown:
        await pair.asking.ask("nobody", Ping())
    assert not unknown.value.sent


async def test_a_broker_asks_itself_directly(pair: Pair) -> None:
    assert await pair.asking.ask("a", Ping()) == Done()


async def test_a_broker_on_its_own_has_nobody_else_to_ask() -> None:
    lone = LonePeers("a", PeerHandlers())
    assert await lone.ask("a", Ping()) == Done()
    with pytest.raises(PeerUnavailableError):
        await lone.ask("b", Ping())


def test_two_parts_cannot_answer_the_same_request() -> None:
    with pytest.raises(InvariantError):
        PeerHandlers().on(Ping, lambda _: asyncio.sleep(0))


async def test_an_answer_of_another_type_never_leaves() -> None:
    handlers = PeerHandlers()

    async def wrong(_: ReportLoad) -> Done:
        return Done()

    handlers.on(ReportLoad, wrong)
    with pytest.raises(InvariantError):
        await handlers.handle(ReportLoad())
