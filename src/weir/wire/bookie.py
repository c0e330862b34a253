"""The bookie's requests and responses as bytes, for both sides.

After the hello (`wire.bookie_hello`), requests flow one way and responses the other, each in a frame
(`wire.frames`), tied by the request id and answered in any order. docs/internals/wire.md has every layout.

    length u32 | crc32c u32 | kind u8 | fields of that kind | entries, if the kind has them

The checksum covers kind and fields: a flipped bit in a request id or ledger id must not acknowledge or fence
the wrong thing (docs/adr/0007). Decoding is strict: whatever is left over, missing, out of range or unknown is
a WireError.

How a connection to a bookie begins: magic, version and features, and who is meant.

The layout of these two frames holds for every version of the protocol. The client names the bookie that it
means, since addresses are reused: a bookie must never store what was meant for another.

Errors on the bookie protocol: one table of codes, used both ways.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from struct import Struct, pack, unpack
from typing import NamedTuple, TypeAlias

from weir.model.errors import (
    BookieBusyError,
    BookieCookieError,
    BookieError,
    BookieReadOnlyError,
    BookieUnavailableError,
    ChecksumError,
    EntryCorruptError,
    EntryInDoubtError,
    EntryLogMissingError,
    FrameTooLargeError,
    JournalCorruptError,
    LedgerFencedError,
    LedgersUnknownError,
    NoSuchEntryError,
    NoSuchLedgerError,
    UnknownVersionError,
    WeirError,
    WireError,
)
from weir.model.ids import BookieId, Buffer, EntryId, LedgerId
from weir.wire.entry import MAX_PAYLOAD_BYTES
from weir.wire.node import frames as error_codes
from weir.wire.node.frames import (
    ErrorCodes,
    as_confirmed,
    as_ledger,
    as_text,
    fields_before_entries,
    fields_before_rest,
    fixed_fields,
    frame,
    frame_with_entries,
    kind_of,
    split_entries,
)

#: Enough for the largest entry, alone in its frame.
MAX_FRAME_BYTES = MAX_PAYLOAD_BYTES + 1024 * 1024
#: No text of a failure may be longer; what is longer is cut.
MAX_TEXT_BYTES = 1024
MAX_U32 = 2**32 - 1


class FrameType(IntEnum):
    """What a frame is. Requests below 64, responses from 64 on."""

    ADD = 1
    READ = 2
    POLL = 3
    LAST_CONFIRMED = 4
    CONFIRM = 5
    FENCE = 6
    DELETE = 7
    PING = 8
    DONE = 64
    ENTRIES = 65
    CONFIRMED = 66
    FAILED = 67


_ADD = Struct("<BBQQI")  # kind, flags, request, ledger, count; then entries
_READ = Struct("<BQQqqI")  # kind, request, ledger, first, last, max bytes
_POLL = Struct("<BQQqI")  # kind, request, ledger, after, timeout ms
_LEDGER = Struct("<BQQ")  # kind, request, ledger
_CONFIRM = Struct("<BQq")  # kind, ledger, last confirmed
_PING = Struct("<BQ")  # kind, request
_DONE = Struct("<BI")  # kind, count; then request ids
_ENTRIES = Struct("<BQQqI")  # kind, request, ledger, last confirmed, count; then entries
_CONFIRMED = Struct("<BQq")  # kind, request, last confirmed
_FAILED = Struct("<BQHHH")  # kind, request, code, bytes of what, bytes of hint; then both texts

_FLAG_RECOVERY = 1
#: A frame of entries takes no more than this besides them.
ENTRIES_OVERHEAD_BYTES = 64


# --- values -------------------------------------------------------------------------------------------------


class Add(NamedTuple):
    """Store entries of one ledger; answered by Done."""

    request_id: int
    ledger_id: LedgerId
    entries: list[tuple[EntryId, memoryview]]
    recovery: bool


class Read(NamedTuple):
    """Entries in [first, last], about `max_bytes` of them; answered by Entries."""

    request_id: int
    ledger_id: LedgerId
    first: EntryId
    last: EntryId
    max_bytes: int


class Poll(NamedTuple):
    """Wait until the last-add-confirmed exceeds `after`; answered by Entries."""

    request_id: int
    ledger_id: LedgerId
    after: EntryId
    timeout_ms: int


class LastConfirmed(NamedTuple):
    """Answered by Confirmed."""

    request_id: int
    ledger_id: LedgerId


class Confirm(NamedTuple):
    """A hint about the last-add-confirmed; not answered."""

    ledger_id: LedgerId
    last_confirmed: EntryId


class Fence(NamedTuple):
    """Answered by Confirmed."""

    request_id: int
    ledger_id: LedgerId


class Delete(NamedTuple):
    """Answered by Done."""

    request_id: int
    ledger_id: LedgerId


class Ping(NamedTuple):
    """Answered by Done."""

    request_id: int


class Done(NamedTuple):
    """These requests are done. One frame acknowledges a whole group commit."""

    request_ids: tuple[int, ...]


class Entries(NamedTuple):
    """Entries of one ledger, in order, and its last-add-confirmed."""

    request_id: int
    ledger_id: LedgerId
    last_confirmed: EntryId
    entries: list[tuple[EntryId, memoryview]]


class Confirmed(NamedTuple):
    """A last-add-confirmed."""

    request_id: int
    last_confirmed: EntryId


#: `wire.bookie_errors` knows the codes.
Failed: TypeAlias = error_codes.Failed
Request: TypeAlias = Add | Read | Poll | LastConfirmed | Confirm | Fence | Delete | Ping
Response: TypeAlias = Done | Entries | Confirmed | Failed


# --- requests -----------------------------------------------------------------------------------------------


def encode_add(
    request_id: int, ledger_id: LedgerId, entries: Sequence[tuple[EntryId, Buffer]], *, recovery: bool = False
) -> list[Buffer]:
    """Buffers to write one after the other; the entries are not copied."""
    flags = _FLAG_RECOVERY if recovery else 0
    return frame_with_entries(_ADD.pack(FrameType.ADD, flags, request_id, ledger_id, len(entries)), entries)


def encode_read(request_id: int, ledger_id: LedgerId, first: EntryId, last: EntryId, max_bytes: int) -> bytes:
    return frame(_READ.pack(FrameType.READ, request_id, ledger_id, first, last, max_bytes))


def encode_poll(request_id: int, ledger_id: LedgerId, after: EntryId, timeout_ms: int) -> bytes:
    return frame(_POLL.pack(FrameType.POLL, request_id, ledger_id, after, timeout_ms))


def encode_last_confirmed(request_id: int, ledger_id: LedgerId) -> bytes:
    return frame(_LEDGER.pack(FrameType.LAST_CONFIRMED, request_id, ledger_id))


def encode_confirm(ledger_id: LedgerId, last_confirmed: EntryId) -> bytes:
    return frame(_CONFIRM.pack(FrameType.CONFIRM, ledger_id, last_confirmed))


def encode_fence(request_id: int, ledger_id: LedgerId) -> bytes:
    return frame(_LEDGER.pack(FrameType.FENCE, request_id, ledger_id))


def encode_delete(request_id: int, ledger_id: LedgerId) -> bytes:
    return frame(_LEDGER.pack(FrameType.DELETE, request_id, ledger_id))


def encode_ping(request_id: int) -> bytes:
    return frame(_PING.pack(FrameType.PING, request_id))


def decode_request(body: Buffer) -> Request:
    """The request in a frame's body; the entries of an Add are slices of it."""
    decode = _REQUESTS.get(kind_of(body))
    if decode is None:
        raise WireError(f"a request of unknown kind {kind_of(body)}")
    return decode(body)


def _decode_add(body: Buffer) -> Add:
    _, flags, request_id, ledger_id, count = fields_before_entries(body, _ADD)
    if flags & ~_FLAG_RECOVERY:
        raise WireError(f"an add has unknown flags {flags:#x}")
    entries = split_entries(body, _ADD, as_ledger(ledger_id), count)
    return Add(request_id, ledger_id, entries, bool(flags))


def _decode_read(body: Buffer) -> Read:
    _, request_id, ledger_id, first, last, max_bytes = fixed_fields(body, _READ)
    if not 0 <= first <= last:
        raise WireError(f"a read of entries {first} to {last}")
    return Read(request_id, as_ledger(ledger_id), first, last, max_bytes)


def _decode_poll(body: Buffer) -> Poll:
    _, request_id, ledger_id, after, timeout_ms = fixed_fields(body, _POLL)
    return Poll(request_id, as_ledger(ledger_id), as_confirmed(after), timeout_ms)


def _decode_last_confirmed(body: Buffer) -> LastConfirmed:
    _, request_id, ledger_id = fixed_fields(body, _LEDGER)
    return LastConfirmed(request_id, as_ledger(ledger_id))


def _decode_confirm(body: Buffer) -> Confirm:
    _, ledger_id, last_confirmed = fixed_fields(body, _CONFIRM)
    return Confirm(as_ledger(ledger_id), as_confirmed(last_confirmed))


def _decode_fence(body: Buffer) -> Fence:
    _, request_id, ledger_id = fixed_fields(body, _LEDGER)
    return Fence(request_id, as_ledger(ledger_id))


def _decode_delete(body: Buffer) -> Delete:
    _, request_id, ledger_id = fixed_fields(body, _LEDGER)
    return Delete(request_id, as_ledger(ledger_id))


def _decode_ping(body: Buffer) -> Ping:
    _, request_id = fixed_fields(body, _PING)
    return Ping(request_id)


_REQUESTS: dict[int, Callable[[Buffer], Request]] = {
    FrameType.ADD: _decode_add,
    FrameType.READ: _decode_read,
    FrameType.POLL: _decode_poll,
    FrameType.LAST_CONFIRMED: _decode_last_confirmed,
    FrameType.CONFIRM: _decode_confirm,
    FrameType.FENCE: _decode_fence,
    FrameType.DELETE: _decode_delete,
    FrameType.PING: _decode_ping,
}

# --- responses ----------------------------------------------------------------------------------------------


def encode_done(request_ids: Sequence[int]) -> bytes:
    count = len(request_ids)
    return frame(_DONE.pack(FrameType.DONE, count) + pack(f"<{count}Q", *request_ids))


def encode_entries(
    request_id: int, ledger_id: LedgerId, last_confirmed: EntryId, entries: Sequence[tuple[EntryId, Buffer]]
) -> list[Buffer]:
    """Buffers to write one after the other; the entries are not copied."""
    head = _ENTRIES.pack(FrameType.ENTRIES, request_id, ledger_id, last_confirmed, len(entries))
    return frame_with_entries(head, entries)


def encode_confirmed(request_id: int, last_confirmed: EntryId) -> bytes:
    return frame(_CONFIRMED.pack(FrameType.CONFIRMED, request_id, last_confirmed))


def encode_failed(failed: Failed) -> bytes:
    what, hint = _cut(failed.what), _cut(failed.hint)
    return frame(
        _FAILED.pack(FrameType.FAILED, failed.request_id, failed.code, len(what), len(hint)) + what + hint
    )


def decode_response(body: Buffer) -> Response:
    """The response in a frame's body; the entries of an Entries are slices of it."""
    decode = _RESPONSES.get(kind_of(body))
    if decode is None:
        raise WireError(f"a response of unknown kind {kind_of(body)}")
    return decode(body)


def _decode_done(body: Buffer) -> Done:
    (_, count), ids = fields_before_rest(body, _DONE)
    if len(ids) != 8 * count:
        raise WireError(f"{count} request ids lie in {len(ids)} bytes")
    return Done(unpack(f"<{count}Q", ids))


def _decode_entries(body: Buffer) -> Entries:
    _, request_id, ledger_id, last_confirmed, count = fields_before_entries(body, _ENTRIES)
    entries = split_entries(body, _ENTRIES, as_ledger(ledger_id), count)
    return Entries(request_id, ledger_id, as_confirmed(last_confirmed), entries)


def _decode_confirmed(body: Buffer) -> Confirmed:
    _, request_id, last_confirmed = fixed_fields(body, _CONFIRMED)
    return Confirmed(request_id, as_confirmed(last_confirmed))


def decode_failed(body: Buffer) -> Failed:
    """A failure, which may also answer a hello."""
    (_, request_id, code, what_bytes, hint_bytes), texts = fields_before_rest(body, _FAILED)
    if len(texts) != what_bytes + hint_bytes or max(what_bytes, hint_bytes) > MAX_TEXT_BYTES:
        raise WireError(f"a failure's texts of {what_bytes} and {hint_bytes} bytes lie in {len(texts)} bytes")
    return Failed(request_id, code, as_text(texts[:what_bytes]), as_text(texts[what_bytes:]))


def _cut(text: str) -> bytes:
    """At most MAX_TEXT_BYTES of UTF-8, cut between characters."""
    return text.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore").encode()


_RESPONSES: dict[int, Callable[[Buffer], Response]] = {
    FrameType.DONE: _decode_done,
    FrameType.ENTRIES: _decode_entries,
    FrameType.CONFIRMED: _decode_confirmed,
    FrameType.FAILED: decode_failed,
}

#: What the bookie itself got wrong, or a code of a later version.
INTERNAL = 1

#: Code to error. Codes are for ever: add, never change.
ERRORS: dict[int, type[WeirError]] = {
    INTERNAL: BookieError,
    2: NoSuchLedgerError,
    3: NoSuchEntryError,
    4: LedgerFencedError,
    5: EntryCorruptError,
    6: BookieReadOnlyError,
    7: BookieBusyError,
    8: BookieUnavailableError,
    9: BookieCookieError,
    10: JournalCorruptError,
    11: EntryLogMissingError,
    12: EntryInDoubtError,
    13: LedgersUnknownError,
    32: WireError,
    33: FrameTooLargeError,
    34: ChecksumError,
    35: UnknownVersionError,
}
_CODES = ErrorCodes(ERRORS, other=INTERNAL, who="bookie")

failed_from = _CODES.failed
error_from = _CODES.error

#: The one version that this build speaks.
VERSION = 1
#: Optional abilities, as bits; both sides use what both have. None so far.
FEATURES = 0
#: Until the hello is through, nobody may make this side buffer more.
MAX_HELLO_BYTES = 4096

#: The kind of link, in proofs (`wire.proof`), which come before the hello where the cluster has a secret.
PURPOSE = "bookie"

_MAGIC = b"WBKE"
_HELLO = Struct("<4sHHIB")  # magic, oldest, newest, features, bytes of the bookie id; then the id
_WELCOME = Struct("<4sHIIB")  # magic, version, features, max frame bytes, bytes of the bookie id; then the id


class Hello(NamedTuple):
    """The client speaks versions `oldest` to `newest` and means this bookie (empty: whoever answers)."""

    bookie_id: BookieId
    oldest: int = VERSION
    newest: int = VERSION
    features: int = FEATURES


class Welcome(NamedTuple):
    """The server says who it is, which version it chose, and the longest frame that it takes."""

    bookie_id: BookieId
    version: int
    features: int
    max_frame_bytes: int


def encode_hello(hello: Hello) -> bytes:
    name = hello.bookie_id.encode()
    return frame(_HELLO.pack(_MAGIC, hello.oldest, hello.newest, hello.features, len(name)) + name)


def decode_hello(body: Buffer) -> Hello:
    (magic, oldest, newest, features, length), rest = fields_before_rest(body, _HELLO)
    name = _bookie_id(magic, rest, length)
    if not 1 <= oldest <= newest:
        raise WireError(f"a hello offers versions {oldest} to {newest}")
    return Hello(name, oldest, newest, features)


def encode_welcome(welcome: Welcome) -> bytes:
    name = welcome.bookie_id.encode()
    head = _WELCOME.pack(_MAGIC, welcome.version, welcome.features, welcome.max_frame_bytes, len(name))
    return frame(head + name)


def decode_welcome(body: Buffer) -> Welcome | Failed:
    """The server's answer to a hello."""
    if kind_of(body) == FrameType.FAILED:
        return decode_failed(body)
    (magic, version, features, max_frame_bytes, length), rest = fields_before_rest(body, _WELCOME)
    return Welcome(_bookie_id(magic, rest, length), version, features, max_frame_bytes)


def choose_version(hello: Hello) -> int:
    """The version to speak with this client, or UnknownVersionError."""
    if not hello.oldest <= VERSION <= hello.newest:
        raise UnknownVersionError(
            f"this bookie speaks protocol version {VERSION}, the client {hello.oldest} to {hello.newest}",
            hint="upgrade the older of the two",
        )
    return VERSION


def _bookie_id(magic: bytes, rest: memoryview, length: int) -> BookieId:
    if magic != _MAGIC:
        raise WireError(f"a connection begins with {magic!r} instead of {_MAGIC!r}: not the bookie protocol")
    if len(rest) != length:
        raise WireError(f"a bookie id of {length} bytes lies in {len(rest)} bytes")
    return BookieId(as_text(rest))
