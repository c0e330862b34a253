"""Calls about queues that another broker has: made there by this one, so that a client is served wherever it asks.

Clients are told by the route which broker has a queue, and go there. What they know may be out of date, or, of
message groups, transactions and lite topics, not what decides. A queue on its way from one broker to another is
waited for within limits; a call is handed on once.

Calls that another broker's gateway handed on: answered by the same handlers, without a connection.
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
#: Makes an answer at this broker.
Here: TypeAlias = Callable[[], Awaitable[Any]]
#: Between two looks for a queue that is on its way.
_PAUSE_S = 0.05
_MOST_PAUSE_S = 0.5
#: How long other brokers have to take notice.
_TELL_S = 1.0


async def queue_name(call: Call, topic: TopicName, number: int, *, create: bool = True) -> TopicName:
    """Of a queue of the topic, by its number."""
    broker = call.session.services.broker
    partitions = await broker.partitions(topic, role=call.role, create=create)
    return topic.at(number) if partitions else topic


async def at_owner(
    call: Call, queue: TopicName, request: Any, here: Here | None = None, *, twice: bool = True
) -> Any:
    """The one message of the answer, made where the queue is. `here`: makes it at this broker; None: as if another
    had handed it on. `twice`: whether it may be asked again although it may have been done."""
    find = partial(call.session.services.broker.owner, queue, role=call.role)
    return await _routed(call, find, request, here, _first, twice=twice)


async def at_owner_streamed(call: Call, queue: TopicName, request: Any, here: Here) -> list[Any]:
    """All messages of the answer."""
    find = partial(call.session.services.broker.owner, queue, role=call.role)
    found: list[Any] = await _routed(call, find, request, here, list)
    return found


async def at_coordinator(call: Call, group: str, request: Any, here: Here) -> Any:
    """The one message of the answer, made by the broker that knows the positions of the group."""
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
    """`made`: the answer of the messages that came from elsewhere."""
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
                raise NotOwnerError("nobody has the queue now")
            return made(await hand_on(call, owner.broker_id, request, call.patience_s))
        except (*MOVED, PeerUnavailableError, PeerBusyError) as moved:
            if isinstance(moved, PeerUnavailableError) and moved.sent and not twice:
                raise
            if clock.monotonic() + pause_s > due:
                raise
        await clock.sleep(pause_s)
        pause_s = min(pause_s * 2, _MOST_PAUSE_S)


async def hand_on(call: Call, broker_id: str, request: Any, wait_s: float, about: Sequence[str] = ()) -> list[Any]:
    """The messages of the answer that another broker gives."""
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
        raise NotOwnerError("the broker that has the queue had no answer")
    return [parse(call.method.response, one) for one in answered]


async def tell_all(call: Call, request: Any) -> None:
    """Hand it on to every other broker, as far as they can be reached: clients repeat what they want."""
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
    """What handlers know of a session, for one call."""

    peer = "another broker"

    def __init__(self, services: "Services") -> None:
        self.services = services
        self.limits = _LIMITS
        self.clock = services.runtime.clock
        self.http2 = _NothingUnsent()
        self.publishing = Publishing(cast("Session", self))

    def forget(self, call: Call) -> None:
        """Nothing is kept of it."""


class HandedOn(Call):
    """What is answered is gathered, and goes back as one."""

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
    """Answers those of other brokers."""

    def __init__(self, services: "Services") -> None:
        self._services = services

    async def answer(self, said: ClientCall) -> Sequence[bytes]:
        load_handlers()
        method = METHODS.get(f"/{SERVICE}/{said.method}".encode())
        if method is None or method.converses:
            raise PeerUnsupportedError(f"{said.method[:80]} cannot be handed on")
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
            raise  # whoever handed it on looks where the queue is now
        except WeirError as refused:
            call.refuse(status_of(refused))
        finally:
            await sender.publishing.close()
        return call.answered
