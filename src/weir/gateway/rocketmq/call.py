"""gRPC calls: request, deadline and answer of one call, and the table of handlers, which register themselves."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from weir.wire.http2 import grpc
from weir.wire.http2.grpc import GrpcStatus
from weir.wire.http2.streams import Headers

if TYPE_CHECKING:
    from weir.gateway.rocketmq.session import Session


SERVICE = "apache.rocketmq.v2.MessagingService"
#: An answer; None if the handler answers later by itself; or a coroutine.
Outcome: TypeAlias = "Any | Coroutine[Any, Any, Any] | None"
Handler: TypeAlias = "Callable[[Call, Any], Outcome]"


@dataclass(frozen=True, slots=True)
class Method:
    """A gRPC method. `streams`: the handler itself sends any number of answer messages. `converses`: the request
    is a stream, too, and the handler runs for each of its messages. `stores`: the session refuses the call shortly
    before its deadline if its messages are not stored by then."""

    name: str
    request: Any
    response: Any
    handler: Handler
    streams: bool = False
    converses: bool = False
    stores: bool = False


#: Methods by HTTP/2 `:path`.
METHODS: dict[bytes, Method] = {}
_MODULES = ("route", "clients", "send", "receive", "acknowledge", "pull", "transactions")


def calls(
    name: str, request: Any, response: Any, *, streams: bool = False, converses: bool = False, stores: bool = False
) -> Callable[[Handler], Handler]:
    def enter(handler: Handler) -> Handler:
        path = f"/{SERVICE}/{name}".encode()
        METHODS[path] = Method(
            name, request, response, handler, streams=streams, converses=converses, stores=stores
        )
        return handler

    return enter


def load_handlers() -> None:
    for module in _MODULES:
        import_module(f"weir.gateway.rocketmq.handlers.{module}")


CLIENT_ID, NAMESPACE, LANGUAGE, VERSION = (
    b"x-mq-client-id",
    b"x-mq-namespace",
    b"x-mq-language",
    b"x-mq-client-version",
)
_TIMEOUT = b"grpc-timeout"
#: The deadline of clients that set none, and how long before the deadline the answer must go out.
PATIENCE_S = 10.0
MARGIN_S = 0.3


class Call:
    """The call of one HTTP/2 stream."""

    #: Whether another broker forwarded the call to this one.
    handed_on = False

    __slots__ = (
        "_begun",
        "_due",
        "_limit_s",
        "about",
        "client_id",
        "done",
        "headers",
        "heard_at",
        "method",
        "reader",
        "role",
        "session",
        "stream",
        "task",
        "whole",
    )

    def __init__(self, session: "Session", stream: int, method: Method, headers: Headers) -> None:
        self.session = session
        self.stream = stream
        self.method = method
        self.headers = headers
        self.reader = grpc.MessageReader(
            session.limits.max_request_bytes, headers.get(b"grpc-encoding", b"identity")
        )
        #: Received request messages, if the request is not a stream.
        self.whole: list[Any] = []
        self.role = ""
        #: Names of lite topics from the broker that forwarded the call.
        self.about: tuple[str, ...] = ()
        self.client_id = headers.get(CLIENT_ID, b"").decode("utf-8", "replace")
        self.task: asyncio.Task[Any] | None = None
        self.done = False
        self._begun = False
        self.heard_at = session.clock.monotonic()
        self._limit_s = limit_s = grpc.timeout_s(headers.get(_TIMEOUT, b""))
        self._due = None if limit_s is None else self.heard_at + limit_s

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the client's deadline; None if it set none."""
        return None if self._due is None else max(0.0, self._due - self.session.clock.monotonic())

    @property
    def patience_s(self) -> float:
        """Seconds that a handler may wait before it must answer."""
        remaining_s = self.remaining_s
        return PATIENCE_S if remaining_s is None else max(0.0, min(PATIENCE_S, remaining_s - MARGIN_S))

    def is_late(self, now: float, interval_s: float) -> bool:
        """Whether the client's deadline passes before the next check, one interval later."""
        limit_s = PATIENCE_S if self._limit_s is None else self._limit_s
        return now >= self.heard_at + limit_s - min(limit_s / 2, MARGIN_S + interval_s)

    @property
    def knows_new_types(self) -> bool:
        """Whether the client knows the message types lite and priority: Python's does, since 5.1."""
        if self.headers.get(LANGUAGE) != b"PYTHON":
            return False
        said = self.headers.get(VERSION, b"").split(b".")
        return len(said) > 1 and said[0].isdigit() and said[1].isdigit() and (int(said[0]), int(said[1])) >= (5, 1)

    @property
    def open(self) -> bool:
        return not self.done

    def answer(self, response: Any) -> None:
        """Send a unary answer."""
        if self.done:
            return
        self._end()
        body = grpc.message(response.SerializeToString())
        self.session.http2.answer(self.stream, grpc.HEAD, body, grpc.TRAILERS_OK)
        self.session.emit()

    def send(self, *responses: Any) -> None:
        """Send messages of a streamed answer."""
        if self.done:
            return
        http2 = self.session.http2
        if not self._begun:
            self._begun = True
            http2.begin(self.stream, grpc.HEAD)
        http2.send(self.stream, b"".join([grpc.message(one.SerializeToString()) for one in responses]))
        self.session.emit()

    def finish(self) -> None:
        """End a streamed answer."""
        if self.done:
            return
        if not self._begun:
            self._begun = True
            self.session.http2.begin(self.stream, grpc.HEAD)
        self._end()
        self.session.http2.finish(self.stream, grpc.TRAILERS_OK)
        self.session.emit()

    def fail(self, status: GrpcStatus, text: str) -> None:
        """Fail with a gRPC status, for errors without a RocketMQ code."""
        if self.done:
            return
        self._end()
        block = grpc.trailers(status, text) if self._begun else grpc.trailers_only(status, text)
        self.session.http2.finish(self.stream, block)
        self.session.emit()

    def refuse(self, status: Any) -> None:
        """Answer with a RocketMQ status only."""
        response = self.method.response(status=status)
        if self.method.streams:
            self.send(response)
            if not self.method.converses:
                self.finish()
        else:
            self.answer(response)

    def gone(self) -> None:
        """Cancel the call after the client reset its stream or disconnected."""
        self._end()
        if self.task is not None:
            self.task.cancel()

    def _end(self) -> None:
        self.done = True
        self.session.forget(self)
