"""Requests to a served metadata store as bytes, for both sides.

After the hello (`wire.meta.hello`) requests flow one way and responses the other, each in a frame
(`wire.frames`), tied by the request id and answered in any order. docs/internals/wire.md has every layout.

    length u32 | crc32c u32 | kind u8 | request u64 | fields of that kind | texts and values

A listing is answered in as many frames as it needs; a watch is a question that waits, asked again from where its
answer ended, so that neither side ever queues more than one answer for it.
"""

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple, TypeAlias

from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.wire.bookie_layout import as_text, fields_before_rest, fixed_fields, frame, kind_of
from weir.wire.meta.kinds import FrameType

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
