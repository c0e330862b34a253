"""What a served metadata store answers, as bytes for both sides (see `wire.meta.requests`)."""

from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias

from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.wire.bookie_layout import as_text, fields_before_rest, fixed_fields, frame, kind_of
from weir.wire.error_codes import Failed
from weir.wire.meta.kinds import MAX_TEXT_BYTES, FrameType

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
