"""RocketMQ session: one HTTP/2 connection, its open calls, and its shutdown.

Over its limits the session stops reading, so TCP back-pressure slows down a client that floods the broker. A
client that does not read its answers receives no more messages, and the session ends after a timeout.

Clients of RocketMQ 4 use the remoting protocol, which Weir does not serve; they receive an error in that protocol.
A remoting frame is its length (4 bytes), the form of its header (1 byte: 0 JSON, 1 binary), the header's length
(3 bytes), the header, and a body.
"""

import asyncio
import json
import logging
import re
from collections.abc import Coroutine
from contextlib import suppress
from struct import Struct
from typing import Any

from weir.gateway.rocketmq.authentication import Credentials
from weir.gateway.rocketmq.call import METHODS, Call
from weir.gateway.rocketmq.context import Services
from weir.gateway.rocketmq.errors import Refused, status_of
from weir.gateway.rocketmq.publisher import Publishing
from weir.gateway.rocketmq.settings import RocketmqSettings
from weir.model.errors import NetworkError, TooManyError, WeirError
from weir.model.ids import Buffer
from weir.runtime.adjustable_clock import liveness
from weir.runtime.budgets import ByteBudget, RequestBudget, RequestShare
from weir.runtime.interfaces import Connection
from weir.runtime.server import Outbox
from weir.runtime.tasks import UNIT_BYTES, TaskScope, Turns, log_about
from weir.wire.first_bytes import answer_to as first_bytes_answer_to
from weir.wire.http2 import grpc
from weir.wire.http2.connection import Http2Server
from weir.wire.http2.frames import Code, Http2Error
from weir.wire.http2.grpc import GrpcError, GrpcStatus
from weir.wire.http2.streams import Body, Event, Request, Reset
from weir.wire.rocketmq import rocketmq_pb2 as api
from weir.wire.rocketmq.proto import parse

WHY = (
    "the client uses the remoting protocol of RocketMQ 4, which Weir does not serve. Use a client of RocketMQ 5"
    " (gRPC), for example rocketmq-client-java; see docs/reference/rocketmq.md"
)
_PREFIX = Struct(">iB3s")
#: Start of a binary header: code, language, version, opaque (request number).
_BINARY = Struct(">hBhi")
_JSON_FORM, _BINARY_FORM = 0, 1
_MAX_FRAME_BYTES = 16 * 1024 * 1024
_OPAQUE = re.compile(rb'"opaque"\s*:\s*(-?\d{1,10})\b')
_SYSTEM_ERROR = 1
_IS_RESPONSE = 1


def answer_to(first: Buffer) -> bytes | None:
    """The answer to the first bytes of a connection if they start a remoting frame, else None."""
    data = bytes(first[:4096])
    if len(data) <= _PREFIX.size:
        return None
    length, form, header_length = _PREFIX.unpack_from(data)
    header_bytes = int.from_bytes(header_length)
    if not 0 < header_bytes <= length - 4 <= _MAX_FRAME_BYTES:
        return None
    header = data[_PREFIX.size : _PREFIX.size + header_bytes]
    if form == _JSON_FORM and header[:1] == b"{":
        found = _OPAQUE.search(header)
        return _answer(int(found[1]) if found else 0)
    if form == _BINARY_FORM and len(header) >= _BINARY.size:
        return _answer(_BINARY.unpack_from(header)[3])
    return None


def _answer(opaque: int) -> bytes:
    """An error response to the request with this number; the client shows its text."""
    header = json.dumps(
        {
            "code": _SYSTEM_ERROR,
            "flag": _IS_RESPONSE,
            "language": "JAVA",
            "opaque": opaque,
            "remark": WHY,
            "serializeTypeCurrentRPC": "JSON",
            "version": 0,
        }
    ).encode()
    return _PREFIX.pack(len(header) + 4, _JSON_FORM, len(header).to_bytes(3)) + header


log = logging.getLogger(__name__)

#: Work units of one call.
_CALL_UNITS = 8
_NOT_STORED = "the message was not stored in time; send it again"


class Session:
    """Serves one connection until it ends."""

    def __init__(
        self,
        services: Services,
        transport: Connection,
        *,
        settings: RocketmqSettings,
        advertised: tuple[str, int],
        delivery_budget: ByteBudget,
        request_budget: RequestBudget,
    ) -> None:
        self.services = services
        self.settings = settings
        self.limits = settings.limits
        self.clock = services.runtime.clock
        #: The advertised address of this listener.
        self.advertised = advertised
        self.http2 = Http2Server(settings.limits.http2)
        self.calls: dict[int, Call] = {}
        self.publishing = Publishing(self)
        self.delivery_share = delivery_budget.share(settings.limits.http2.max_unsent_bytes)
        self._request_share = RequestShare(request_budget, self.clock)
        self._transport = transport
        self._outbox = Outbox(transport, self.clock, services.metrics)
        self._turns = Turns(self.clock)
        self._credentials = Credentials(services.broker, self.clock, transport.certificate)
        self._tasks = TaskScope(f"rocketmq {transport.peer}")
        self._arriving = 0
        self._liveness = liveness(self.clock)
        self._heard_at = self._liveness.monotonic()
        self._greeted = self._ending = False
        #: Unsent bytes at the last check, and the time since which the number has not changed.
        self._unsent: tuple[int, float] = (0, self._heard_at)
        self._ended = asyncio.Event()

    @property
    def peer(self) -> str:
        return self._transport.peer

    @property
    def role(self) -> str:
        """The role of one of the open calls; usually all have the same."""
        return next((call.role for call in self.calls.values() if call.role), "")

    @property
    def client_id(self) -> str:
        return next((call.client_id for call in self.calls.values() if call.client_id), "")

    # --- life cycle --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until the connection ends; no input of the client makes it raise."""
        log_about(connection=self.peer)
        self.services.metrics.connections += 1
        receiving = self._tasks.spawn(self._receive(), "receive")
        try:
            await self._ended.wait()
            if self._ending and not receiving.done():
                await self._settle(receiving)
        finally:
            self.services.metrics.connections -= 1
            self.services.clients.left(self)
            for call in list(self.calls.values()):
                call.gone()
            await self._tasks.close()
            await self.publishing.close()
            self.delivery_share.close()
            self._request_share.close()
            self._transport.close()

    def end(self, why: WeirError) -> None:
        """Stop accepting calls, answer the open ones, and end."""
        if not self._ending:
            self._ending = True
            self.http2.leave()
            self.emit()
            self._ended.set()

    def abort(self) -> None:
        self._transport.abort()
        self._ended.set()

    def overdue(self, now: float) -> str | None:
        limits = self.limits
        self._refuse_late(now)
        stalled_at = self._outbox.stalled_at
        if stalled_at is not None and now - stalled_at > limits.stall_timeout_s:
            return "the client does not read its answers"
        unsent = self.http2.unsent_bytes
        if not unsent or unsent != self._unsent[0]:
            self._unsent = (unsent, now)
        elif now - self._unsent[1] > limits.stall_timeout_s:
            return "the client does not read its answers"
        silent_s = now - self._heard_at
        if not self._greeted:
            return "the client sent nothing" if silent_s > limits.connect_timeout_s else None
        if self._request_share.late(now, self._heard_at):
            return "receive memory is short, and the client does not send the rest of its request"
        if silent_s > limits.idle_timeout_s and not self.calls:
            return "the connection is idle"
        return None

    def _refuse_late(self, now: float) -> None:
        """Refuse sends that are not stored shortly before their deadline; the client sends the messages again."""
        interval_s = self.settings.sweep_interval_s
        for call in [call for call in self.calls.values() if call.method.stores]:
            if call.is_late(now, interval_s):
                call.refuse(status_of(Refused(api.Code.MASTER_PERSISTENCE_TIMEOUT, _NOT_STORED)))
                if call.task is not None:  # so that the broker stores nothing after the refusal
                    call.task.cancel()

    async def _settle(self, receiving: "asyncio.Task[None]") -> None:
        """Fail streaming calls at once, and wait for unary calls; the client may disconnect meanwhile."""
        for call in list(self.calls.values()):
            if call.method.streams:
                call.fail(GrpcStatus.UNAVAILABLE, "the server is shutting down")
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.settle_s):
                await self.publishing.settled()
        self._outbox.flush()

    # --- input -------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        try:
            while data := await self._transport.receive():
                self._heard_at = self._liveness.monotonic()
                self.services.metrics.bytes_in += len(data)
                self._turns.begin()
                if not self._greeted and (answer := answer_to(data)) is not None:
                    self._refuse_client(WHY, answer)
                    return
                if not self._greeted and (wrong := self.settings.served.refusal(data)) is not None:
                    self._refuse_client(str(wrong), first_bytes_answer_to(data, wrong))
                    return
                events = self.http2.receive(data, self._heard_at)
                self._greeted = True
                data = b""
                for event in events:
                    self._on_event(event)
                    size = len(event.data) if isinstance(event, Body) else 0
                    if self._turns.spend(_CALL_UNITS + size // UNIT_BYTES):
                        self.publishing.flush()
                        await self._turns.next()
                self.publishing.flush()
                self.emit()
                await self._hold_back()
                await self._outbox.drain()
                await self.clock.sleep(0)  # the next buffer may be here already
        except NetworkError as lost:
            log.debug("connection of %s lost: %s", self.peer, lost)
        except Http2Error as bad:
            self._refuse(bad)
        except TooManyError as crowded:
            self._refuse(Http2Error(crowded.what, Code.ENHANCE_YOUR_CALM))
        finally:
            self._ended.set()

    def _refuse(self, why: Http2Error) -> None:
        log.warning("connection of %s refused: %s", self.peer, why.what)
        self.services.metrics.refused += 1
        self.http2.refuse(why)
        self.emit()
        self._outbox.flush()

    def _refuse_client(self, why: str, answer: bytes) -> None:
        """Refuse a client of another protocol. `answer`: in the client's protocol; may be empty."""
        log.warning("connection of %s refused: %s", self.peer, why)
        self.services.metrics.refused += 1
        if answer:
            self._outbox.say_all([answer])
            self._outbox.flush()

    async def _hold_back(self) -> None:
        """Pause reading while incomplete requests or unstored messages exceed their limits."""
        share = self._request_share
        if share.arriving and not self._arriving:
            share.arrived()
        if self._arriving > share.arriving:
            if share.arriving:
                share.arrived()
            await share.wait_capacity(self._arriving)
        await self.publishing.wait_capacity()

    def _on_event(self, event: Event) -> None:
        match event:
            case Body():
                call = self.calls.get(event.stream)
                if call is not None:
                    self._on_body(call, event)
            case Request():
                self._on_request(event)
            case Reset():
                gone = self.calls.get(event.stream)
                if gone is not None:
                    gone.gone()

    def _on_request(self, request: Request) -> None:
        headers, stream = request.headers, request.stream
        if not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            self.http2.finish(stream, grpc.http_error(415))
        elif headers[b":method"] != b"POST":
            self.http2.finish(stream, grpc.http_error(405))
        elif (method := METHODS.get(headers[b":path"])) is None:
            path = headers[b":path"].decode("utf-8", "replace")
            self.http2.finish(
                stream, grpc.trailers_only(GrpcStatus.UNIMPLEMENTED, f"Method not found: {path[:200]}")
            )
        else:
            call = Call(self, stream, method, headers)
            self.calls[stream] = call
            if request.ended:
                self._complete(call)

    def _on_body(self, call: Call, body: Body) -> None:
        before = call.reader.kept_bytes
        try:
            found = call.reader.feed(body.data)
            self._arriving += call.reader.kept_bytes - before
            if self._arriving > self.limits.max_arriving_bytes:
                raise GrpcError("too many bytes of incomplete requests", GrpcStatus.RESOURCE_EXHAUSTED)
            requests = [parse(call.method.request, one) for one in found]
        except GrpcError as bad:
            call.fail(bad.status, bad.what)
            return
        except WeirError as bad:
            call.fail(GrpcStatus.INTERNAL, bad.what)
            return
        if call.method.converses:
            for request in requests:
                self._begin(call, request)
        else:
            call.whole += requests
            if len(call.whole) > 1:
                call.fail(GrpcStatus.INTERNAL, "Too many requests")
                return
        if body.ended:
            self._complete(call)

    def _complete(self, call: Call) -> None:
        """Handle the end of a request stream."""
        if call.done:
            return
        if call.reader.kept_bytes:
            call.fail(GrpcStatus.INTERNAL, "the request ends in the middle of a message")
        elif call.method.converses:
            call.finish()
        elif not call.whole:
            call.fail(GrpcStatus.INTERNAL, "Half-closed without a request")
        else:
            self._begin(call, call.whole.pop())

    def forget(self, call: Call) -> None:
        """Remove a call that is answered or cancelled."""
        self._arriving -= call.reader.kept_bytes
        call.reader.kept_bytes = 0
        self.calls.pop(call.stream, None)
        if call.method.converses:
            self.services.clients.hung_up(call)

    # --- calls -------------------------------------------------------------------------------------------

    def _begin(self, call: Call, request: Any) -> None:
        self.services.metrics.count(call.method.name)
        if not call.client_id:
            call.refuse(api.Status(code=api.Code.CLIENT_ID_REQUIRED, message="client id cannot be empty"))
            return
        role = self._credentials.known(call.headers)
        if role is None:
            self._spawn(call, self._authenticated(call, request))
        else:
            call.role = role
            self._handle(call, request)

    async def _authenticated(self, call: Call, request: Any) -> None:
        call.role = await self._credentials.find(call.headers)
        outcome = call.method.handler(call, request)
        if isinstance(outcome, Coroutine):
            outcome = await outcome
        if outcome is not None:
            call.answer(outcome)
        self.publishing.flush()

    def _handle(self, call: Call, request: Any) -> None:
        try:
            outcome = call.method.handler(call, request)
        except WeirError as refused:
            call.refuse(status_of(refused))
            return
        if isinstance(outcome, Coroutine):
            self._spawn(call, self._awaited(call, outcome))
        elif outcome is not None:
            call.answer(outcome)

    async def _awaited(self, call: Call, outcome: Coroutine[Any, Any, Any]) -> None:
        response = await outcome
        if response is not None:
            call.answer(response)
        self.publishing.flush()

    def _spawn(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        call.task = self._tasks.spawn(self._run(call, work), call.method.name)

    async def _run(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except WeirError as refused:
            if not isinstance(refused, Refused):
                log.debug("%s of %s refused: %s", call.method.name, self.peer, refused)
            call.refuse(status_of(refused))
        except asyncio.CancelledError:
            raise
        except Exception as bug:
            log.exception("%s of %s failed", call.method.name, self.peer)
            call.refuse(status_of(bug))

    def emit(self) -> None:
        """Send pending HTTP/2 output in this turn of the event loop."""
        out = self.http2.take_output()
        if out:
            self._outbox.say_all(out)
