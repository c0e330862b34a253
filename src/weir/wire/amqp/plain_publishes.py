"""Publishes that differ in their bodies only, taken out of a receive buffer without looking at their frames.

A publisher says the same method and properties again and again: then all bytes between two bodies are known, but
for their sizes. Everything is compared with one pattern; what differs in any way, or has no body, or one in
several frames, is left where it is, for `CommandReader` to take or to refuse.
"""

import re
from struct import Struct

from weir.wire.amqp.frames import BODY, END, HEAD, HEADER, METHOD
from weir.wire.amqp.methods import basic
from weir.wire.amqp.properties import Properties

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
