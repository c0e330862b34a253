"""Requests to a served metadata store as bytes, for both sides.

After the hello (`wire.meta.hello`) requests flow one way and responses the other, each in a frame
(`wire.frames`), tied by the request id and answered in any order. docs/internals/wire.md has every layout.

    length u32 | crc32c u32 | kind u8 | request u64 | fields of that kind | texts and values

A listing is answered in as many frames as it needs; a watch is a question that waits, asked again from where its
answer ended, so that neither side ever queues more than one answer for it.

What a served metadata store answers, as bytes for both sides (see `wire.meta.requests`).

How a connection to a served metadata store begins, once both ends are known (`wire.proof`): versions, and which
instance of the store it is. The layout of these two frames holds for every version.

What the frames of the metadata protocol are, how long they may be, and its errors by number.

The metadata store served to other processes: hello, requests and responses as bytes
(docs/internals/wire.md).
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, TypeAlias

from weir.model.errors import (
    ChecksumError,
    FrameTooLargeError,
    LeaseExpiredError,
    MetaConflictError,
    MetaError,
    MetaFullError,
    MetaUnavailableError,
    NotAuthenticatedError,
    UnknownVersionError,
    WeirError,
    WireError,
)
from weir.model.ids import Buffer
from weir.wire.node.frames import ErrorCodes, Failed, as_text, fields_before_rest, fixed_fields, frame, kind_of

#: Enough for the largest value with its key, and for a page of smaller ones.
MAX_FRAME_BYTES = 2 * 1024 * 1024
#: An answer of several items ends behind the one that made it as long as this.
PAGE_BYTES = 512 * 1024
#: No text of a failure may be longer; what is longer is cut.
MAX_TEXT_BYTES = 1024

#: Codes are for ever: add, never change.
ERRORS: dict[int, type[WeirError]] = {
    1: MetaError,
    2: MetaConflictError,
    3: MetaUnavailableError,
    4: LeaseExpiredError,
    5: NotAuthenticatedError,
    6: MetaFullError,
    32: WireError,
    33: FrameTooLargeError,
    34: ChecksumError,
    35: UnknownVersionError,
}
CODES = ErrorCodes(ERRORS, other=1, who="metadata store")


class FrameType(IntEnum):
    """What a frame is. From the client below 64, from the server from 64 on."""

    HELLO = 1
    GET = 3
    PUT = 4
    DELETE = 5
    LIST = 6
    WATCH = 7
    GRANT = 8
    RENEW = 9
    REVOKE = 10
    PAGE = 11
    COUNT = 12
    WELCOME = 64
    ITEMS = 65
    DONE = 66
    CHANGES = 67
    FORGOTTEN = 68
    LEASED = 69
    FAILED = 70


_KEY = Struct("<BQ")  # kind, request; then a key or prefix
_PUT = Struct("<BQBQQH")  # kind, request, flags, expected version, lease, bytes of the key; then key and value
_DELETE = Struct("<BQBQ")  # kind, request, flags, expected version; then the key
_WATCH = Struct("<BQQI")  # kind, request, after, timeout ms; then the prefix
_PAGE = Struct("<BQIH")  # kind, request, limit, bytes of the prefix; then the prefix, and the key that it is after
_GRANT = Struct("<BQI")  # kind, request, ttl ms
_LEASE = Struct("<BQQ")  # kind, request, lease

_EXPECTING = 1


class Get(NamedTuple):
    """Answered by Items: one or none."""

    request_id: int
    key: str


class Put(NamedTuple):
    """Answered by Done. Lease 0: none."""

    request_id: int
    key: str
    value: bytes
    expect: int | None
    lease_id: int


class Delete(NamedTuple):
    """Answered by Done."""

    request_id: int
    key: str
    expect: int | None


class List(NamedTuple):
    """Answered by Items, until one says that there are no more."""

    request_id: int
    prefix: str


class Page(NamedTuple):
    """Answered by Items, like List: at most so many, the first that come after a key."""

    request_id: int
    prefix: str
    after: str
    limit: int


class Count(NamedTuple):
    """Answered by Done; its version is the number of keys."""

    request_id: int
    prefix: str


class Watch(NamedTuple):
    """Wait for changes after a revision; answered by Changes (empty when the time is up) or Forgotten."""

    request_id: int
    prefix: str
    after: int
    timeout_ms: int


class Grant(NamedTuple):
    """Answered by Leased."""

    request_id: int
    ttl_ms: int


class Renew(NamedTuple):
    """Answered by Leased."""

    request_id: int
    lease_id: int


class Revoke(NamedTuple):
    """Answered by Done."""

    request_id: int
    lease_id: int


Request: TypeAlias = Get | Put | Delete | List | Page | Count | Watch | Grant | Renew | Revoke


def encode_request(request: Request) -> bytes:
    return frame(_ENCODERS[type(request)](request))


def decode_request(body: Buffer) -> Request:
    decode = _REQUESTS.get(kind_of(body))
    if decode is None:
        raise WireError(f"a metadata request of unknown kind {kind_of(body)}")
    return decode(body)


def _encode_put(put: Put) -> bytes:
    key = put.key.encode()
    head = _PUT.pack(FrameType.PUT, put.request_id, *_expectation(put.expect), put.lease_id, len(key))
    return head + key + put.value


def _encode_delete(delete: Delete) -> bytes:
    return _DELETE.pack(FrameType.DELETE, delete.request_id, *_expectation(delete.expect)) + delete.key.encode()


def _encode_page(page: Page) -> bytes:
    prefix = page.prefix.encode()
    return _PAGE.pack(FrameType.PAGE, page.request_id, page.limit, len(prefix)) + prefix + page.after.encode()


def _encode_watch(watch: Watch) -> bytes:
    return _WATCH.pack(FrameType.WATCH, watch.request_id, watch.after, watch.timeout_ms) + watch.prefix.encode()


_ENCODERS: dict[type, Callable[..., bytes]] = {
    Get: lambda get: _KEY.pack(FrameType.GET, get.request_id) + get.key.encode(),
    Put: _encode_put,
    Delete: _encode_delete,
    List: lambda listing: _KEY.pack(FrameType.LIST, listing.request_id) + listing.prefix.encode(),
    Page: _encode_page,
    Count: lambda count: _KEY.pack(FrameType.COUNT, count.request_id) + count.prefix.encode(),
    Watch: _encode_watch,
    Grant: lambda grant: _GRANT.pack(FrameType.GRANT, grant.request_id, grant.ttl_ms),
    Renew: lambda renew: _LEASE.pack(FrameType.RENEW, renew.request_id, renew.lease_id),
    Revoke: lambda revoke: _LEASE.pack(FrameType.REVOKE, revoke.request_id, revoke.lease_id),
}


def _expectation(expect: int | None) -> tuple[int, int]:
    return (0, 0) if expect is None else (_EXPECTING, expect)


def _expected(flags: int, version: int) -> int | None:
    if flags & ~_EXPECTING:
        raise WireError(f"a metadata request has unknown flags {flags:#x}")
    return version if flags & _EXPECTING else None


def _decode_get(body: Buffer) -> Get:
    (_, request_id), key = fields_before_rest(body, _KEY)
    return Get(request_id, as_text(key))


def _decode_put(body: Buffer) -> Put:
    (_, request_id, flags, version, lease_id, length), rest = fields_before_rest(body, _PUT)
    if length > len(rest):
        raise WireError(f"a key of {length} bytes lies in {len(rest)} bytes")
    key, value = as_text(rest[:length]), bytes(rest[length:])
    return Put(request_id, key, value, _expected(flags, version), lease_id)


def _decode_delete(body: Buffer) -> Delete:
    (_, request_id, flags, version), key = fields_before_rest(body, _DELETE)
    return Delete(request_id, as_text(key), _expected(flags, version))


def _decode_list(body: Buffer) -> List:
    (_, request_id), prefix = fields_before_rest(body, _KEY)
    return List(request_id, as_text(prefix))


def _decode_page(body: Buffer) -> Page:
    (_, request_id, limit, length), rest = fields_before_rest(body, _PAGE)
    if length > len(rest):
        raise WireError(f"a prefix of {length} bytes lies in {len(rest)} bytes")
    return Page(request_id, as_text(rest[:length]), as_text(rest[length:]), limit)


def _decode_count(body: Buffer) -> Count:
    (_, request_id), prefix = fields_before_rest(body, _KEY)
    return Count(request_id, as_text(prefix))


def _decode_watch(body: Buffer) -> Watch:
    (_, request_id, after, timeout_ms), prefix = fields_before_rest(body, _WATCH)
    return Watch(request_id, as_text(prefix), after, timeout_ms)


_REQUESTS: dict[int, Callable[[Buffer], Request]] = {
    FrameType.GET: _decode_get,
    FrameType.PUT: _decode_put,
    FrameType.DELETE: _decode_delete,
    FrameType.LIST: _decode_list,
    FrameType.PAGE: _decode_page,
    FrameType.COUNT: _decode_count,
    FrameType.WATCH: _decode_watch,
    FrameType.GRANT: lambda body: Grant(*fixed_fields(body, _GRANT)[1:]),
    FrameType.RENEW: lambda body: Renew(*fixed_fields(body, _LEASE)[1:]),
    FrameType.REVOKE: lambda body: Revoke(*fixed_fields(body, _LEASE)[1:]),
}

_ITEMS = Struct("<BQBQI")  # kind, request, flags, revision, count; then items
_DONE = Struct("<BQQ")  # kind, request, version
_CHANGES = Struct("<BQQI")  # kind, request, up to, count; then items
_FORGOTTEN = Struct("<BQ")  # kind, request
_LEASED = Struct("<BQBQ")  # kind, request, alive, lease
_FAILED = Struct("<BQHH")  # kind, request, code, bytes of what; then what and hint
_ITEM = Struct("<QBHI")  # version, flags, bytes of the key, bytes of the value; then both

_MORE = 1
_DELETED = 1


class Item(NamedTuple):
    """A key as of a version; no value if it was deleted."""

    key: str
    value: bytes | None
    version: int


class Items(NamedTuple):
    """Keys as of a revision."""

    request_id: int
    revision: int
    more: bool
    items: list[Item]


class Done(NamedTuple):
    """The change is made, and durable."""

    request_id: int
    version: int


class Changes(NamedTuple):
    """Every change under the prefix from where the watch stood up to this revision."""

    request_id: int
    upto: int
    changes: list[Item]


class Forgotten(NamedTuple):
    """The store does not have the history from there on any more: list, and watch from the listing."""

    request_id: int


class Leased(NamedTuple):
    """The lease was granted or renewed, or is gone."""

    request_id: int
    lease_id: int
    alive: bool


Response: TypeAlias = Items | Done | Changes | Forgotten | Leased | Failed


def encode_items(request_id: int, revision: int, items: Sequence[Item], *, more: bool) -> bytes:
    head = _ITEMS.pack(FrameType.ITEMS, request_id, _MORE if more else 0, revision, len(items))
    return frame(head + _join(items))


def encode_done(request_id: int, version: int) -> bytes:
    return frame(_DONE.pack(FrameType.DONE, request_id, version))


def encode_changes(request_id: int, upto: int, changes: Sequence[Item]) -> bytes:
    return frame(_CHANGES.pack(FrameType.CHANGES, request_id, upto, len(changes)) + _join(changes))


def encode_forgotten(request_id: int) -> bytes:
    return frame(_FORGOTTEN.pack(FrameType.FORGOTTEN, request_id))


def encode_leased(request_id: int, lease_id: int, *, alive: bool) -> bytes:
    return frame(_LEASED.pack(FrameType.LEASED, request_id, alive, lease_id))


def encode_failed(failed: Failed) -> bytes:
    what, hint = _cut(failed.what), _cut(failed.hint)
    return frame(_FAILED.pack(FrameType.FAILED, failed.request_id, failed.code, len(what)) + what + hint)


def item_bytes(item: Item) -> int:
    """What an item takes in an answer, or a little less."""
    return _ITEM.size + len(item.key) + len(item.value or b"")


def decode_response(body: Buffer) -> Response:
    decode = _RESPONSES.get(kind_of(body))
    if decode is None:
        raise WireError(f"a metadata response of unknown kind {kind_of(body)}")
    return decode(body)


def decode_failed(body: Buffer) -> Failed:
    """A failure, which may also answer a hello."""
    (_, request_id, code, length), texts = fields_before_rest(body, _FAILED)
    if length > len(texts) or len(texts) > 2 * MAX_TEXT_BYTES:
        raise WireError(f"a failure's text of {length} bytes lies in {len(texts)} bytes")
    return Failed(request_id, code, as_text(texts[:length]), as_text(texts[length:]))


def _decode_items(body: Buffer) -> Items:
    (_, request_id, flags, revision, count), rest = fields_before_rest(body, _ITEMS)
    if flags & ~_MORE:
        raise WireError(f"a listing has unknown flags {flags:#x}")
    items = _split(rest, count)
    if any(item.value is None for item in items):
        raise WireError("a listing has a deleted key")
    return Items(request_id, revision, bool(flags), items)


def _decode_changes(body: Buffer) -> Changes:
    (_, request_id, upto, count), rest = fields_before_rest(body, _CHANGES)
    return Changes(request_id, upto, _split(rest, count))


def _decode_leased(body: Buffer) -> Leased:
    _, request_id, alive, lease_id = fixed_fields(body, _LEASED)
    if alive > 1:
        raise WireError(f"a lease is alive, or is not, but not {alive}")
    return Leased(request_id, lease_id, bool(alive))


_RESPONSES: dict[int, Callable[[Buffer], Response]] = {
    FrameType.ITEMS: _decode_items,
    FrameType.DONE: lambda body: Done(*fixed_fields(body, _DONE)[1:]),
    FrameType.CHANGES: _decode_changes,
    FrameType.FORGOTTEN: lambda body: Forgotten(*fixed_fields(body, _FORGOTTEN)[1:]),
    FrameType.LEASED: _decode_leased,
    FrameType.FAILED: decode_failed,
}


def _join(items: Iterable[Item]) -> bytes:
    parts = []
    for item in items:
        key, value = item.key.encode(), item.value or b""
        parts += [
            _ITEM.pack(item.version, _DELETED if item.value is None else 0, len(key), len(value)),
            key,
            value,
        ]
    return b"".join(parts)


def _split(rest: memoryview, count: int) -> list[Item]:
    items, at = [], 0
    while at < len(rest):
        if len(rest) - at < _ITEM.size:
            raise WireError(f"{len(rest) - at} bytes are left for an item")
        version, flags, key_bytes, value_bytes = _ITEM.unpack_from(rest, at)
        middle = at + _ITEM.size + key_bytes
        end = middle + value_bytes
        if end > len(rest) or flags & ~_DELETED or (flags and value_bytes):
            raise WireError(f"an item of {key_bytes} and {value_bytes} bytes with flags {flags:#x} does not fit")
        value = None if flags else bytes(rest[middle:end])
        items.append(Item(as_text(rest[at + _ITEM.size : middle]), value, version))
        at = end
    if len(items) != count:
        raise WireError(f"an answer announces {count} items and has {len(items)}")
    return items


def _cut(text: str) -> bytes:
    """At most MAX_TEXT_BYTES of UTF-8, cut between characters."""
    return text.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore").encode()


#: The one version that this build speaks.
VERSION = 1
#: Until the hello is through, nobody may make this side buffer more.
MAX_HELLO_BYTES = 4096
#: The kind of link, in proofs.
PURPOSE = "metadata"

_MAGIC = b"WMTA"
_HELLO = Struct("<B4sHH")  # kind, magic, oldest, newest
_WELCOME = Struct("<B4sHQ")  # kind, magic, version, instance


class Hello(NamedTuple):
    """The client speaks versions `oldest` to `newest`."""

    oldest: int = VERSION
    newest: int = VERSION


class Welcome(NamedTuple):
    """`instance` is the store's since it was opened: leases of another instance are gone."""

    instance: int
    version: int = VERSION


def encode_hello(hello: Hello) -> bytes:
    return frame(_HELLO.pack(FrameType.HELLO, _MAGIC, hello.oldest, hello.newest))


def decode_hello(body: Buffer) -> Hello:
    kind, magic, oldest, newest = fixed_fields(body, _HELLO)
    _check(kind, FrameType.HELLO, magic)
    if not 1 <= oldest <= newest:
        raise WireError(f"a hello offers versions {oldest} to {newest}")
    return Hello(oldest, newest)


def encode_welcome(welcome: Welcome) -> bytes:
    return frame(_WELCOME.pack(FrameType.WELCOME, _MAGIC, welcome.version, welcome.instance))


def decode_welcome(body: Buffer) -> Welcome | Failed:
    """The server's answer to a hello."""
    if kind_of(body) == FrameType.FAILED:
        return decode_failed(body)
    kind, magic, version, instance = fixed_fields(body, _WELCOME)
    _check(kind, FrameType.WELCOME, magic)
    return Welcome(instance, version)


def choose_version(hello: Hello) -> int:
    """The version to speak with this client, or UnknownVersionError."""
    if not hello.oldest <= VERSION <= hello.newest:
        raise UnknownVersionError(
            f"this metadata store speaks version {VERSION}, the client {hello.oldest} to {hello.newest}",
            hint="upgrade the older of the two",
        )
    return VERSION


def _check(kind: int, expected: FrameType, magic: bytes) -> None:
    if kind != expected or magic != _MAGIC:
        raise WireError(f"kind {kind} with {magic!r} is no {expected.name.lower()} of the metadata protocol")
