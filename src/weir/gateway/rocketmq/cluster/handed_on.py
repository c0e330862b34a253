"""Calls that another broker's gateway handed on: answered by the same handlers, without a connection."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, cast

from weir.broker.api import ClientCall
from weir.gateway.rocketmq.connection.calls import Call
from weir.gateway.rocketmq.connection.settings import SessionLimits
from weir.gateway.rocketmq.errors import MOVED, status_of
from weir.gateway.rocketmq.publish.publishing import Publishing
from weir.gateway.rocketmq.registry import METHODS, SERVICE, Method, load_handlers
from weir.model.errors import PeerUnsupportedError, WeirError
from weir.wire.http2.grpc import GrpcStatus
from weir.wire.rocketmq.proto import parse

if TYPE_CHECKING:
    from weir.gateway.rocketmq.connection.session import Session
    from weir.gateway.rocketmq.services import Services

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
