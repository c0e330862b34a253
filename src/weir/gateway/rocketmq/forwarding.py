"""Forwarding of calls to the broker that owns the queue, so that every broker can serve every client.

Clients find the owner of a queue with the route. Their route may be outdated, and for message groups, transactions
and lite topics it does not determine the queue. While a queue moves between brokers, the call waits and retries
within its deadline. A call is forwarded only once; the receiving broker runs the same handlers, without a
connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from weir.broker.api.broker import ClientCall, Owner
from weir.gateway.rocketmq.call import METHODS, SERVICE, Call, Method, load_handlers
from weir.gateway.rocketmq.errors import MOVED, status_of
from weir.gateway.rocketmq.publisher import Publishing
from weir.gateway.rocketmq.settings import SessionLimits
from weir.model.errors import NotOwnerError, PeerBusyError, PeerUnavailableError, PeerUnsupportedError, WeirError
from weir.model.topics import TopicName
from weir.wire.http2.grpc import GrpcStatus
from weir.wire.rocketmq.proto import parse

if TYPE_CHECKING:
    from weir.gateway.rocketmq.context import Services
    from weir.gateway.rocketmq.session import Session


GATEWAY = "rocketmq"
#: Computes the answer on this broker.
Here: TypeAlias = Callable[[], Awaitable[Any]]
#: Pause between two lookups of a moving queue; it doubles up to the maximum.
_PAUSE_S = 0.05
_MOST_PAUSE_S = 0.5
#: Timeout for broadcasts to other brokers.
_TELL_S = 1.0


async def queue_name(call: Call, topic: TopicName, number: int, *, create: bool = True) -> TopicName:
    """The Weir topic of a queue, by its number."""
    broker = call.session.services.broker
    partitions = await broker.partitions(topic, role=call.role, create=create)
    return topic.at(number) if partitions else topic


async def at_owner(
    call: Call, queue: TopicName, request: Any, here: Here | None = None, *, twice: bool = True
) -> Any:
    """Run a call at the owner of the queue; returns the only answer message. `here` computes it on this broker;
    None: forward even to this broker itself. `twice`: whether the call may be repeated after it may have taken
    effect."""
    find = partial(call.session.services.broker.owner, queue, role=call.role)
    return await _routed(call, find, request, here, _first, twice=twice)


async def at_owner_streamed(call: Call, queue: TopicName, request: Any, here: Here) -> list[Any]:
    """Run a call at the owner of the queue; returns all answer messages."""
    find = partial(call.session.services.broker.owner, queue, role=call.role)
    found: list[Any] = await _routed(call, find, request, here, list)
    return found


async def at_coordinator(call: Call, group: str, request: Any, here: Here) -> Any:
    """Run a call at the broker with the group's committed offsets; returns the only answer message."""
    return await _routed(
        call, partial(call.session.services.positions.of(call.role).owner, group), request, here, _first
    )


def _first(messages: Sequence[Any]) -> Any:
    return messages[0]


async def _routed(
    call: Call,
    find: Callable[[], Awaitable[Owner]],
    request: Any,
    here: Here | None,
    made: Callable[[list[Any]], Any],
    *,
    twice: bool = True,
) -> Any:
    """Run a call at the owner, and retry while the queue moves. `made` converts the messages of another broker."""
    if call.handed_on and here is not None:
        return await here()
    clock = call.session.clock
    due, pause_s = clock.monotonic() + call.patience_s, _PAUSE_S
    while True:
        owner = await find()
        try:
            if owner.here and here is not None:
                return await here()
            if not owner.broker_id:
                raise NotOwnerError("no broker owns the queue now")
            return made(await hand_on(call, owner.broker_id, request, call.patience_s))
        except (*MOVED, PeerUnavailableError, PeerBusyError) as moved:
            if isinstance(moved, PeerUnavailableError) and moved.sent and not twice:
                raise
            if clock.monotonic() + pause_s > due:
                raise
        await clock.sleep(pause_s)
        pause_s = min(pause_s * 2, _MOST_PAUSE_S)


async def hand_on(call: Call, broker_id: str, request: Any, wait_s: float, about: Sequence[str] = ()) -> list[Any]:
    """Forward a call to another broker; returns its answer messages."""
    services = call.session.services
    if call.handed_on or services.gateway_calls is None:
        raise NotOwnerError("the queue is served by another broker")
    services.metrics.handed_on += 1
    said = ClientCall(
        GATEWAY,
        call.method.name,
        call.role,
        call.client_id,
        request.SerializeToString(),
        max(1, int(wait_s * 1000)),
        tuple(about),
    )
    answered = await services.gateway_calls.hand_on(broker_id, said)
    if not answered:
        raise NotOwnerError("the broker that owns the queue sent no answer")
    return [parse(call.method.response, one) for one in answered]


async def tell_all(call: Call, request: Any) -> None:
    """Send a call to all other brokers. Ignores unreachable ones, because clients repeat the call periodically."""
    services = call.session.services
    others = [one.broker_id for one in services.broker.brokers() if one.broker_id != services.broker_name]
    if call.handed_on or not others:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(_TELL_S):
            telling = (hand_on(call, other, request, _TELL_S) for other in others)
            await asyncio.gather(*telling, return_exceptions=True)


_LIMITS = SessionLimits()


class _NothingUnsent:
    unsent_bytes = 0


class _Sender:
    """Stands in for the session of a forwarded call."""

    peer = "another broker"

    def __init__(self, services: "Services") -> None:
        self.services = services
        self.limits = _LIMITS
        self.clock = services.runtime.clock
        self.http2 = _NothingUnsent()
        self.publishing = Publishing(cast("Session", self))

    def forget(self, call: Call) -> None:
        """Nothing to do: the sender does not track calls."""


class HandedOn(Call):
    """A call forwarded by another broker; collects its answer messages and returns them together."""

    __slots__ = ("answered", "ended")
    handed_on = True

    def __init__(self, sender: _Sender, method: Method, said: ClientCall) -> None:
        super().__init__(cast("Session", sender), 0, method, {b"x-mq-client-id": said.client.encode()})
        self.role = said.role
        self.about = said.about
        self._due = self.session.clock.monotonic() + said.wait_ms / 1000
        self.answered: list[bytes] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answer(self, response: Any) -> None:
        self.send(response)
        self.finish()

    def send(self, *responses: Any) -> None:
        if not self.done:
            self.answered += [one.SerializeToString() for one in responses]

    def finish(self) -> None:
        self._end()
        if not self.ended.done():
            self.ended.set_result(None)

    def fail(self, status: GrpcStatus, text: str) -> None:
        self.finish()


class HandedOnCalls:
    """Answers calls forwarded by other brokers."""

    def __init__(self, services: "Services") -> None:
        self._services = services

    async def answer(self, said: ClientCall) -> Sequence[bytes]:
        load_handlers()
        method = METHODS.get(f"/{SERVICE}/{said.method}".encode())
        if method is None or method.converses:
            raise PeerUnsupportedError(f"{said.method[:80]} cannot be forwarded")
        sender = _Sender(self._services)
        call = HandedOn(sender, method, said)
        try:
            outcome = method.handler(call, parse(method.request, said.body))
            if isinstance(outcome, Coroutine):
                outcome = await outcome
            if outcome is not None:
                call.answer(outcome)
            sender.publishing.flush()
            await call.ended
        except MOVED:
            raise  # the forwarding broker looks up the new owner
        except WeirError as refused:
            call.refuse(status_of(refused))
        finally:
            await sender.publishing.close()
        return call.answered
