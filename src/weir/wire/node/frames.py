"""Length-prefixed frames out of a stream of receive buffers.

    length u32 | that many bytes

The length is little-endian in Weir's own protocols; a protocol with another order says so to its splitter.

A frame that lies whole in one buffer is given out as a slice of it. Only a frame that arrives in pieces is
copied, into a buffer that grows with what came and not with what was announced; so a peer can make this side hold
no more memory than the bytes it really sent, some rooms for all peers aside, and never more than the limit. A very
large one gets pages of its own, which take no memory before they are written to: they go back whole, where buffers
that grew step by step leave the heap full of holes.

What all frames of the bookie protocol share: the checksum over the fields, and entries behind them.

    length u32 | crc32c u32 | fields | entries, if the kind has them

A "body" is a frame without its length. The checksum covers the fields; entries carry their own. Everything here
that decodes raises a WireError and nothing else.

Errors by number, as Weir's own protocols send them: one table for each protocol, used both ways.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from typing import Any, NamedTuple

from weir.model.errors import ChecksumError, FrameTooLargeError, WeirError, WireError
from weir.model.ids import NO_ENTRY, Buffer, EntryId, LedgerId
from weir.wire.checksum import crc32c
from weir.wire.entry import entry_key, entry_size

_LENGTH = Struct("<I")
PREFIX_BYTES = _LENGTH.size
#: Rooms for large frames that come in pieces: freshly touched memory costs more than the copying.
_ROOM_BYTES = 1024 * 1024 + 64 * 1024
_ROOMS = 16
#: A frame of which less came, or was announced, is not given a room.
_LARGE_BYTES = 16 * 1024
#: References to a room that nobody looks at: that of the list, of the loop, and of the question.
_UNSHARED = 3 if sys.implementation.name == "cpython" else 0
_rooms: list[bytearray] = []
#: From here on a frame gets pages of its own, once more of it comes.
_PAGED_BYTES = 16 * 1024 * 1024


def _room() -> bytearray | None:
    """Memory for a large frame that no frame is in any more, by CPython's own count of who looks at it."""
    for room in _rooms:
        if sys.getrefcount(room) == _UNSHARED:
            return room
    if len(_rooms) == _ROOMS:
        return None
    _rooms.append(bytearray(_ROOM_BYTES))
    return _rooms[-1]


def _pages(size: int) -> mmap | None:
    """Memory of a very large frame's own, if the system has any left to promise."""
    try:
        return mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS)
    except OSError:
        return None


class FrameSplitter:
    """Splits one connection's bytes. After an error the stream has lost its rhythm: close the connection."""

    def __init__(self, limit: int, prefix: Struct = _LENGTH) -> None:
        #: The longest frame to accept; may be changed at any frame (small before a hello, larger after).
        self.limit = limit
        self._prefix = prefix
        self._torn: bytearray | mmap = bytearray()
        self._came = 0  # so much of the torn frame, with its prefix
        self._whole: memoryview | None = None

    @property
    def at_boundary(self) -> bool:
        """Whether the stream may end here without tearing a frame."""
        return not self._came

    @property
    def announced(self) -> int:
        """How long the frame is of which only a part is here; 0 while that is not known, or there is none."""
        if self._came < PREFIX_BYTES:
            return 0
        length: int = self._prefix.unpack_from(self._torn)[0]
        return length

    def complete(self, data: Buffer) -> tuple[memoryview | None, memoryview]:
        """The torn frame, if `data` completes it, and what of `data` lies behind: for `feed`, or for whoever
        knows frames at a glance."""
        view = memoryview(data)
        if not self._came:
            return None, view
        at = self._complete_torn(view)
        whole, self._whole = self._whole, None
        return whole, view[at:]

    def feed(self, data: Buffer) -> Iterator[memoryview]:
        """The frames that `data` completes, without their prefixes. Iterate to the end, or be done with the
        stream. A frame over the limit raises after the frames before it were given out."""
        view = memoryview(data)
        at, end = 0, len(view)
        if self._came:
            at = self._complete_torn(view)
            if self._whole is not None:
                whole, self._whole = self._whole, None
                yield whole
        while end - at >= PREFIX_BYTES:
            length = self._announced(view, at)
            start = at + PREFIX_BYTES
            if end - start < length:
                break
            at = start + length
            yield view[start:at]
        if at < end:
            # Copied, not kept as a view: many tiny pieces would else pin many large receive buffers.
            self._keep(view[at:])

    def forget(self) -> None:
        """The stream is over: hold nothing of it until somebody collects the garbage."""
        self._torn, self._came, self._whole = bytearray(), 0, None

    def _complete_torn(self, view: memoryview) -> int:
        """Take from `view` what the torn frame lacks; how many bytes that was."""
        taken = 0
        if self._came < PREFIX_BYTES:
            taken = min(PREFIX_BYTES - self._came, len(view))
            self._keep(view[:taken])
            if self._came < PREFIX_BYTES:
                return taken
        size = PREFIX_BYTES + self._announced(memoryview(self._torn), 0)
        piece = view[taken : taken + size - self._came]
        self._keep(piece)
        if self._came == size:
            self._whole = memoryview(self._torn)[PREFIX_BYTES:size]
            self._torn, self._came = bytearray(), 0
        return taken + len(piece)

    def _keep(self, piece: memoryview) -> None:
        """Copy a piece behind what came before it."""
        came, end = self._came, self._came + len(piece)
        self._came = end
        if end > len(self._torn):
            room = self._room_for(piece) if end >= _LARGE_BYTES else None
            if room is None:
                self._torn += piece  # type: ignore[operator]  # pages are there for all of a frame
                return
            memoryview(room)[:came] = memoryview(self._torn)[:came]
            self._torn = room
        memoryview(self._torn)[came:end] = piece

    def _room_for(self, piece: memoryview) -> bytearray | mmap | None:
        """For the frame that begins with what came before, or with this piece."""
        start = self._torn or piece
        if len(start) < PREFIX_BYTES:
            return None
        size: int = PREFIX_BYTES + self._prefix.unpack_from(start)[0]
        if size <= _ROOM_BYTES:
            return _room()
        return _pages(size) if size >= _PAGED_BYTES and self._came else None

    def _announced(self, data: Buffer, at: int) -> int:
        length: int = self._prefix.unpack_from(data, at)[0]
        if length > self.limit:
            raise FrameTooLargeError(f"a frame announces {length} bytes, the limit is {self.limit}")
        return length


_PREFIX = Struct("<II")  # length of the frame, checksum of its fields
_CRC = Struct("<I")
CRC_BYTES = _CRC.size
_MAX_ID = 2**63 - 1


def frame(fields: bytes) -> bytes:
    """A frame of fields alone."""
    return _PREFIX.pack(CRC_BYTES + len(fields), crc32c(fields)) + fields


def frame_with_entries(fields: bytes, entries: Sequence[tuple[EntryId, Buffer]]) -> list[Buffer]:
    """A frame of fields and entries, as buffers to write one after the other: no entry is copied."""
    buffers: list[Buffer] = [data for _, data in entries]
    length = CRC_BYTES + len(fields) + sum(map(len, buffers))
    return [_PREFIX.pack(length, crc32c(fields)) + fields, *buffers]


def kind_of(body: Buffer) -> int:
    """The kind byte: the first of the fields."""
    if len(body) <= CRC_BYTES:
        raise WireError(f"a frame of {len(body)} bytes has no kind")
    return body[CRC_BYTES]


def fixed_fields(body: Buffer, layout: Struct) -> tuple[Any, ...]:
    """Fields of a fixed layout that fill the body."""
    if len(body) != CRC_BYTES + layout.size:
        raise WireError(f"a frame of {len(body)} bytes should have {CRC_BYTES + layout.size}")
    _check_crc(body, CRC_BYTES + layout.size)
    return layout.unpack_from(body, CRC_BYTES)


def fields_before_entries(body: Buffer, layout: Struct) -> tuple[Any, ...]:
    """Fields of a fixed layout with entries behind them."""
    if len(body) < CRC_BYTES + layout.size:
        raise WireError(f"a frame of {len(body)} bytes should have {CRC_BYTES + layout.size} at least")
    _check_crc(body, CRC_BYTES + layout.size)
    return layout.unpack_from(body, CRC_BYTES)


def fields_before_rest(body: Buffer, layout: Struct) -> tuple[tuple[Any, ...], memoryview]:
    """Fields of a fixed layout, and the variable rest of the body; the checksum covers both."""
    if len(body) < CRC_BYTES + layout.size:
        raise WireError(f"a frame of {len(body)} bytes should have {CRC_BYTES + layout.size} at least")
    _check_crc(body, len(body))
    return layout.unpack_from(body, CRC_BYTES), memoryview(body)[CRC_BYTES + layout.size :]


def split_entries(
    body: Buffer, layout: Struct, ledger_id: LedgerId, count: int
) -> list[tuple[EntryId, memoryview]]:
    """The entries behind the fields, as slices: exactly `count`, all of this ledger. Their checksums are left
    to whoever uses them."""
    view = memoryview(body)
    at, end = CRC_BYTES + layout.size, len(view)
    entries: list[tuple[EntryId, memoryview]] = []
    while at < end:
        start = at
        at += entry_size(view, at)
        owner, entry_id = entry_key(view, start)
        if at > end or owner != ledger_id or entry_id > _MAX_ID:
            raise WireError(f"entry {entry_id} of ledger {owner} does not belong in a frame of ledger {ledger_id}")
        entries.append((entry_id, view[start:at]))
    if len(entries) != count:
        raise WireError(f"a frame announces {count} entries and has {len(entries)}")
    return entries


def as_ledger(number: int) -> LedgerId:
    if number > _MAX_ID:
        raise WireError(f"{number} is no ledger id")
    return LedgerId(number)


def as_confirmed(number: int) -> EntryId:
    """A last-add-confirmed, which is NO_ENTRY for an empty ledger."""
    if number < NO_ENTRY:
        raise WireError(f"{number} is no entry id")
    return EntryId(number)


def as_text(data: Buffer) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as bad:
        raise WireError(f"a text is not UTF-8: {bad.reason}") from bad


def _check_crc(body: Buffer, end: int) -> None:
    if crc32c(memoryview(body)[CRC_BYTES:end]) != _CRC.unpack_from(body)[0]:
        raise ChecksumError("the checksum of a frame does not match")


class Failed(NamedTuple):
    """The request failed (id 0: the connection did); the protocol's table knows the codes."""

    request_id: int
    code: int
    what: str
    hint: str


class ErrorCodes:
    """Codes are for ever: a table grows, and never changes."""

    def __init__(self, errors: Mapping[int, type[WeirError]], *, other: int, who: str) -> None:
        """`other`: the code of whatever has none, and what a code of a later version is taken for."""
        self._errors = dict(errors)
        self._codes: dict[type[BaseException], int] = {error: code for code, error in errors.items()}
        self._other = other
        self._who = who

    def failed(self, request_id: int, error: BaseException) -> Failed:
        """The error as a response. A class without a code goes as its nearest ancestor that has one; what is no
        WeirError says nothing of the insides."""
        code = next((self._codes[cls] for cls in type(error).__mro__ if cls in self._codes), self._other)
        if isinstance(error, WeirError):
            return Failed(request_id, code, error.what, error.hint)
        return Failed(request_id, code, f"the {self._who} failed inside", "see its log")

    def error(self, failed: Failed) -> WeirError:
        """The response as an error."""
        return self._errors.get(failed.code, self._errors[self._other])(failed.what, hint=failed.hint)
