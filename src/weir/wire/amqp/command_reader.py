"""Frames to commands: methods, each with the content that follows it on its channel.

A content is a header frame and body frames until as many bytes are there as the header says; those of several
channels may lie between one another. A body in one frame is a slice of the receive buffer; one in more is put
together in memory that grows with what came.

Publishes that differ in their bodies only, taken out of a receive buffer without looking at their frames.

A publisher says the same method and properties again and again: then all bytes between two bodies are known, but
for their sizes. Everything is compared with one pattern; what differs in any way, or has no body, or one in
several frames, is left where it is, for `CommandReader` to take or to refuse.
"""

import re
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from weir.model.errors import AmqpError
from weir.model.ids import Buffer
from weir.wire.amqp.frames import (
    BODY,
    END,
    HEAD,
    HEADER,
    INITIAL_FRAME_MAX,
    METHOD,
    FrameSplitter,
    ReplyCode,
    Role,
)
from weir.wire.amqp.methods import Method, basic, decode_method
from weir.wire.amqp.properties import Properties, decode_properties

_CLASS = b"\x00\x3c\x00\x00"
_SIZES = Struct(">Q")
_END = END[0]


class PlainPublishes:
    """Those with one method and one set of properties on one channel."""

    def __init__(
        self, channel: int, payload: bytes, method: basic.Publish, properties: Properties, header: bytes
    ) -> None:
        """`payload`: of the method's frame; `header`: the properties' bytes."""
        self.channel = channel
        self.method = method
        self.properties = properties
        self.header = header
        before = HEAD.pack(METHOD, channel, len(payload)) + payload + END
        before += HEAD.pack(HEADER, channel, len(_CLASS) + 8 + len(header)) + _CLASS
        between = header + END + HEAD.pack(BODY, channel, 0)[:3]
        self._size_at = len(before)
        # Eight bytes of the content's size, and four of the frame's, whose numbers are compared below.
        self._match = re.compile(
            re.escape(before) + rb"\x00{4}(.{4})" + re.escape(between) + rb"\1", re.DOTALL
        ).match

    def take(
        self, view: memoryview, at: int, *, count: int, size: int, limit: int
    ) -> tuple[list[memoryview], int]:
        """The bodies of those that lie one after the other, whole, from `at` on, and where they end: at most
        `count`, and none after the one with which they reach `size` bytes. `limit`: the longest body."""
        bodies: list[memoryview] = []
        match, unpack, last = self._match, _SIZES.unpack_from, len(view)
        size_at, stop = self._size_at, at + size
        while count and at < stop and (found := match(view, at)) is not None:
            (length,) = unpack(view, at + size_at)
            start = found.end()
            end = start + length
            if not 0 < length <= limit or end >= last or view[end] != _END:
                break
            bodies.append(view[start:end])
            at = end + 1
            count -= 1
        return bodies, at


_CONTENT = Struct(">HHQ")
_CONNECTION = 10
#: What RabbitMQ accepts as one message unless told otherwise.
MAX_BODY_BYTES = 16 * 1024 * 1024
#: What nobody may announce: RabbitMQ's own limit, where it ends the connection.
_ABSURD_BYTES = 512 * 1024 * 1024
#: What the unfinished contents of all channels may have.
MAX_HELD_BYTES = 128 * 1024 * 1024
DEFAULT_CHANNEL_MAX = 2047
#: Publishers say the same method, and often the same properties, with every message.
_REMEMBERED = 64
_PUBLISH = b"\x00\x3c\x00\x28"
#: Longer ones are not remembered.
_REMEMBERED_BYTES = 512


class Command(NamedTuple):
    """A method that came. With a content: its properties, their bytes (flags and values), and the body.

    `body` may be a slice of the receive buffer: who keeps it for long copies it. It is None, with the properties
    there, if `size` is more than the limit: the content was not kept, and its channel is to be closed. As in
    RabbitMQ that is known when all of it has come: clients whose channel is closed in the middle of a content send
    the rest of it after their close-ok, where it would be an unexpected frame.
    """

    channel: int
    method: Method
    properties: Properties | None = None
    header: bytes | None = None
    body: Buffer | None = None
    size: int = 0


class _Partial:
    """A content of which the header is there, and a part of the body at most. `body` None: it is not kept."""

    __slots__ = ("body", "header", "left", "method", "properties", "size")

    def __init__(self, method: Method, properties: Properties, header: bytes, size: int, kept: bool) -> None:
        self.method = method
        self.properties = properties
        self.header = header
        self.size = self.left = size
        self.body = bytearray() if kept else None


class CommandReader:
    """Reads one connection, as its server or its client. After an error, close the connection."""

    def __init__(
        self,
        role: Role,
        *,
        frame_max: int = INITIAL_FRAME_MAX,
        channel_max: int = DEFAULT_CHANNEL_MAX,
        max_body: int = MAX_BODY_BYTES,
        max_held: int = MAX_HELD_BYTES,
    ) -> None:
        #: The highest channel on which something may come; may be changed when it is negotiated.
        self.channel_max = channel_max
        #: The largest body that is kept.
        self.max_body = max_body
        self._max_held = max_held
        self._role = role
        self._splitter = FrameSplitter(role, frame_max)
        self._held = 0
        #: By channel: a method that waits for its header, or a content that waits for its body.
        self._open: dict[int, Method | _Partial] = {}
        self._publishes: dict[bytes, Method] = {}
        self._properties: dict[bytes, Properties] = {}
        #: The last publish: its channel, the payload of its frame, and the bytes of its properties.
        self._last: tuple[int, bytes, bytes] | None = None
        self._last_method: tuple[int, bytes] = (0, b"")
        self._plain: PlainPublishes | None = None

    @property
    def frame_max(self) -> int:
        return self._splitter.frame_max

    @frame_max.setter
    def frame_max(self, size: int) -> None:
        """As negotiated; 0, which is no limit for AMQP, is none that this side could keep: give a number."""
        self._splitter.frame_max = size

    @property
    def held_bytes(self) -> int:
        """What the unfinished contents of all channels have."""
        return self._held

    @property
    def begun(self) -> bool:
        """Whether the protocol header has come whole, as a server expects it first."""
        return self._splitter.begun

    @property
    def announced(self) -> int:
        """Bytes of all contents that are kept and have not come whole."""
        if not self._open:
            return 0
        waiting = [each for each in self._open.values() if isinstance(each, _Partial)]
        return sum(each.size for each in waiting if each.body is not None)

    @property
    def at_boundary(self) -> bool:
        """Whether the stream may end here without tearing a frame or a content."""
        return self._splitter.at_boundary and not self._open

    def forget_channel(self, channel: int) -> None:
        """The channel is closed: what is unfinished on it is dropped."""
        partial = self._open.pop(channel, None)
        if isinstance(partial, _Partial) and partial.body is not None:
            self._held -= len(partial.body)

    def drop_bodies(self) -> None:
        """Keep no content from now on: those that are unfinished are dropped, further ones are skipped."""
        self.max_body = -1
        for partial in self._open.values():
            if isinstance(partial, _Partial):
                partial.body = None
        self._held = 0

    def forget(self) -> None:
        """The stream is over: hold nothing of it until somebody collects the garbage."""
        self._splitter.forget()
        self._open.clear()
        self._held = 0

    def resume(self, data: Buffer) -> tuple[list[Command], memoryview]:
        """The commands that were begun, as far as `data` goes on with them, and what is left of it then."""
        view = memoryview(data)
        commands: list[Command] = []
        splitter = self._splitter
        while view and (self._open or not splitter.at_boundary):
            step = splitter.lacking(view)
            commands += self.feed(view[:step])
            view = view[step:]
        return commands, view

    @property
    def has_plain(self) -> bool:
        """Whether publishes are alike, so that it is worth to look for more of them."""
        return self._plain is not None

    def plain_publishes(self) -> PlainPublishes | None:
        """Those like the last publish, if the one before it was like it, and nothing is begun."""
        return None if self._open or not self._splitter.at_boundary else self._plain

    def _published(self, channel: int, header: bytes, properties: Properties, method: Method) -> None:
        """A publish came: two that are alike make a pattern."""
        number, payload = self._last_method
        last = (channel, payload, header)
        if number != channel:
            return
        plain = self._plain
        if last != self._last:
            self._last = last
        elif isinstance(method, basic.Publish) and (
            plain is None or (plain.channel, plain.header, plain.method) != (channel, header, method)
        ):
            self._plain = PlainPublishes(channel, payload, method, properties, header)

    def feed(self, data: Buffer) -> Iterator[Command]:
        """The commands that `data` completes; AmqpError or AmqpHeaderError after those that came before it.
        Heartbeats are none: any bytes at all are a sign of life."""
        waiting = self._open
        for kind, channel, payload in self._splitter.feed(data):
            if kind == METHOD:
                method = self._method(channel, payload)
                if channel in waiting:
                    self._interrupted(channel)
                if method.has_content:
                    waiting[channel] = method
                else:
                    yield Command(channel, method)
            elif kind == BODY:
                partial = waiting.get(channel)
                if not isinstance(partial, _Partial):
                    raise _unexpected(partial)
                command = self._piece(channel, partial, payload)
                if command is not None:
                    yield command
            elif kind == HEADER:
                announced = waiting.get(channel)
                if announced is None or isinstance(announced, _Partial):
                    raise _unexpected(announced)
                command = self._header(channel, announced, payload)
                if command is not None:
                    yield command
            elif channel or payload:
                raise AmqpError(
                    f"a heartbeat of {len(payload)} bytes comes on channel {channel}",
                    code=ReplyCode.UNEXPECTED_FRAME if channel else ReplyCode.FRAME_ERROR,
                )

    def _method(self, channel: int, payload: memoryview) -> Method:
        raw = bytes(payload)
        method = self._publishes.get(raw)
        if raw[:4] == _PUBLISH:
            self._last_method = (channel, raw)
        if method is None:
            method = decode_method(raw)
            if self._role not in method.receivers:
                raise _at_fault(ReplyCode.COMMAND_INVALID, "unimplemented method", method)
            if raw[:4] == _PUBLISH:
                if len(self._publishes) >= _REMEMBERED:
                    self._publishes.clear()
                self._publishes[raw] = method
        if (channel == 0) != (method.class_id == _CONNECTION):
            if channel:
                raise _at_fault(ReplyCode.COMMAND_INVALID, "unimplemented method", method)
            what = "unexpected method in connection state running"
            raise _at_fault(ReplyCode.CHANNEL_ERROR, what, method)
        if channel > self.channel_max:
            what = f"{method.name} comes on channel {channel}, and channel_max is {self.channel_max}"
            raise _at_fault(ReplyCode.CHANNEL_ERROR, what, method)
        return method

    def _interrupted(self, channel: int) -> None:
        """A method comes where a content should go on: only one that is not kept may end early, since its channel
        was closed meanwhile."""
        partial = self._open[channel]
        if isinstance(partial, _Partial) and partial.body is None:
            del self._open[channel]
            return
        raise _unexpected(partial)

    def _header(self, channel: int, method: Method, payload: memoryview) -> Command | None:
        if len(payload) < _CONTENT.size:
            what = f"a content's header has {len(payload)} bytes"
            raise _at_fault(ReplyCode.FRAME_ERROR, what, method)
        class_id, weight, size = _CONTENT.unpack_from(payload)
        if class_id != method.class_id or weight:
            what = f"expected content header for class {method.class_id}, got one for class {class_id} instead"
            if weight:
                what = f"a content header has the weight {weight}"
            raise _at_fault(ReplyCode.UNEXPECTED_FRAME, what, method)
        if size > _ABSURD_BYTES:
            what = f"a content announces {size} bytes, and the limit is {_ABSURD_BYTES}"
            raise _at_fault(ReplyCode.FRAME_ERROR, what, method)
        header = bytes(payload[_CONTENT.size :])
        properties = self._properties.get(header)
        if properties is None:
            properties = self._decoded(header, method)
        else:
            self._published(channel, header, properties, method)
        if size == 0:
            del self._open[channel]
            return Command(channel, method, properties, header, b"")
        self._open[channel] = _Partial(method, properties, header, size, kept=size <= self.max_body)
        return None

    def _decoded(self, header: bytes, method: Method) -> Properties:
        try:
            properties = decode_properties(header)
        except AmqpError as bad:
            raise _at_fault(bad.code, bad.what, method) from bad
        if len(header) <= _REMEMBERED_BYTES:
            if len(self._properties) >= _REMEMBERED:
                self._properties.clear()
            self._properties[header] = properties
        return properties

    def _piece(self, channel: int, partial: _Partial, payload: memoryview) -> Command | None:
        came = len(payload)
        left = partial.left = partial.left - came
        if left < 0:
            what = f"a content of {partial.size} bytes has {-left} more"
            raise _at_fault(ReplyCode.FRAME_ERROR, what, partial.method)
        body = partial.body
        if left == 0:
            del self._open[channel]
            found: Buffer | None = None if body is None else payload
            if body:
                self._held -= len(body)
                body += payload
                found = memoryview(body)
            return Command(channel, partial.method, partial.properties, partial.header, found, partial.size)
        if body is not None:
            body += payload
            self._held += came
            if self._held > self._max_held:
                what = f"the unfinished contents of a connection have {self._held} bytes"
                raise _at_fault(ReplyCode.RESOURCE_ERROR, what, partial.method)
        return None


def _at_fault(code: int, what: str, method: Method) -> AmqpError:
    return AmqpError(what, code=code, class_id=method.class_id, method_id=method.method_id)


def _unexpected(waiting: Method | _Partial | None) -> AmqpError:
    """A frame of another kind than the one that comes next, in RabbitMQ's words."""
    if waiting is None:
        what = "expected method frame, got non method frame instead"
        return AmqpError(what, code=ReplyCode.UNEXPECTED_FRAME)
    if isinstance(waiting, _Partial):
        what = "expected content body, got non content body frame instead"
        return _at_fault(ReplyCode.UNEXPECTED_FRAME, what, waiting.method)
    what = f"expected content header for class {waiting.class_id}, got non content header frame instead"
    return _at_fault(ReplyCode.UNEXPECTED_FRAME, what, waiting)
