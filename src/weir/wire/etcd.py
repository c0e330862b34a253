"""etcd's v3 API as its JSON gateway speaks it: requests to bodies, answers to values.

Keys and values travel in base64, 64-bit integers as decimal strings, and a field with its default value (zero,
false, empty) is left out. A stream is one JSON object per line, each wrapped in `result` or `error`.
"""

import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Sequence
from typing import Any, NamedTuple

from weir.model.errors import FrameTooLargeError, WireError

PATH_RANGE = "/v3/kv/range"
PATH_TXN = "/v3/kv/txn"
PATH_DELETE = "/v3/kv/deleterange"
PATH_WATCH = "/v3/watch"
PATH_LEASE_GRANT = "/v3/lease/grant"
PATH_LEASE_RENEW = "/v3/lease/keepalive"
PATH_LEASE_REVOKE = "/v3/lease/revoke"

#: The largest answer, or line of a stream, that is taken in.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_DIGITS = 20

# What etcd's errors mean to us, by gRPC status code.
CODE_NOT_FOUND = 5
CODE_OUT_OF_RANGE = 11
#: The request was understood and refused; asking again will not help.
REFUSALS = {3: "invalid argument", 7: "permission denied", 8: "resource exhausted", 9: "failed precondition",
            12: "not implemented", 16: "not authenticated"}  # fmt: skip


class KeyValue(NamedTuple):
    """A key as etcd holds it."""

    key: str
    value: bytes
    mod_revision: int


class RangeAnswer(NamedTuple):
    """Keys found, as of `revision`; `more`: the limit cut the list."""

    items: list[KeyValue]
    revision: int
    more: bool


class TxnAnswer(NamedTuple):
    """Whether the condition held, and the store's revision after it."""

    succeeded: bool
    revision: int


class LeaseAnswer(NamedTuple):
    """A lease and the seconds that it lives on; 0: it is gone."""

    lease_id: int
    ttl_s: int


class Event(NamedTuple):
    """A key was put, or deleted (no value)."""

    key: str
    value: bytes | None
    mod_revision: int


class WatchAnswer(NamedTuple):
    """One message of a watch. `compacted` is not 0 if the history before that revision is forgotten."""

    events: list[Event]
    revision: int
    created: bool
    canceled: bool
    compacted: int
    fragment: bool


class Failure(NamedTuple):
    """etcd's own word on what went wrong."""

    code: int
    message: str


# --- requests -------------------------------------------------------------------------------------------------


def get_request(key: str) -> bytes:
    return _dump({"key": _b64(key)})


def list_request(
    prefix: str, *, start: str | None = None, limit: int = 0, revision: int = 0, keys_only: bool = False
) -> bytes:
    """Keys under the prefix in order, from `start` on; `revision` 0 is now."""
    return _dump(
        {
            "key": _b64(prefix if start is None else start) if prefix or start else _b64("\0"),
            "range_end": _prefix_end(prefix),
            "limit": str(limit),
            "revision": str(revision),
            "keys_only": keys_only,
        }
    )


def count_request(prefix: str) -> bytes:
    """How many keys are under the prefix."""
    return _dump({"key": _b64(prefix or "\0"), "range_end": _prefix_end(prefix), "count_only": True})


def create_request(creations: Sequence[tuple[str, bytes, Sequence[tuple[str, bytes]]]]) -> bytes:
    """Put each key that does not exist, after what is put beside it: a transaction of transactions, so that each
    has a condition of its own and all share one request."""
    nested = [
        {
            "request_txn": {
                "compare": [{"key": _b64(key), "target": "MOD", "result": "EQUAL", "mod_revision": "0"}],
                "success": [_put(k, v) for k, v in (*beside, (key, value))],
            }
        }
        for key, value, beside in creations
    ]
    return _dump({"success": nested})


def _put(key: str, value: bytes) -> dict[str, Any]:
    return {"request_put": {"key": _b64(key), "value": b64encode(value).decode()}}


def put_request(key: str, value: bytes, *, expect: int | None, lease_id: int) -> bytes:
    """A put under the condition that the key's last change was revision `expect` (0: there is no such key)."""
    put = {"key": _b64(key), "value": b64encode(value).decode(), "lease": str(lease_id)}
    return _txn(key, expect, {"request_put": put})


def delete_request(key: str, *, expect: int | None) -> bytes:
    return _txn(key, expect, {"request_delete_range": {"key": _b64(key)}})


def watch_request(prefix: str, start_revision: int) -> bytes:
    """Every change under the prefix from that revision on. Fragments keep a message within bounds."""
    return _dump(
        {
            "create_request": {
                "key": _b64(prefix or "\0"),
                "range_end": _prefix_end(prefix),
                "start_revision": str(start_revision),
                "fragment": True,
            }
        }
    )


def grant_request(ttl_s: int) -> bytes:
    return _dump({"TTL": str(ttl_s)})


def lease_request(lease_id: int) -> bytes:
    """To renew or to revoke."""
    return _dump({"ID": str(lease_id)})


def _txn(key: str, expect: int | None, operation: dict[str, Any]) -> bytes:
    compare = []
    if expect is not None:
        compare = [{"key": _b64(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(expect)}]
    return _dump({"compare": compare, "success": [operation]})


def _prefix_end(prefix: str) -> str:
    """The first key after all keys with the prefix; one zero byte means: to the end."""
    raw = prefix.encode().rstrip(b"\xff")
    return b64encode(raw[:-1] + bytes([raw[-1] + 1]) if raw else b"\0").decode()


def _b64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _dump(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


# --- answers --------------------------------------------------------------------------------------------------


def decode_range(body: bytes) -> RangeAnswer:
    fields = _object(body)
    items = [_key_value(kv) for kv in _list(fields, "kvs")]
    return RangeAnswer(items, _revision(fields), _bool(fields, "more"))


def decode_txn(body: bytes) -> TxnAnswer:
    fields = _object(body)
    return TxnAnswer(_bool(fields, "succeeded"), _revision(fields))


def decode_count(body: bytes) -> int:
    return _int(_object(body), "count")


def decode_created(body: bytes) -> list[int]:
    """The version of each key that a transaction of transactions made; 0 for those that were there."""
    fields = _object(body)
    revision = _revision(fields)
    made = [_inner(response) for response in _list(fields, "responses")]
    return [revision if _bool(each, "succeeded") else 0 for each in made]


def _inner(response: Any) -> dict[str, Any]:
    inner = response.get("response_txn") if isinstance(response, dict) else None
    if not isinstance(inner, dict):
        raise WireError("a part of a transaction's answer is not of a transaction")
    return inner


def decode_lease(body: bytes) -> LeaseAnswer:
    """The answer to a grant (plain) or to a renewal (a stream of one)."""
    fields = _object(body)
    if "result" in fields or "error" in fields:
        fields = unwrap(fields)
    return LeaseAnswer(_int(fields, "ID"), _int(fields, "TTL"))


def decode_watch(line: dict[str, Any]) -> WatchAnswer:
    """A message of a watch stream; a WireError that names what etcd said if it reports a failure."""
    fields = unwrap(line)
    return WatchAnswer(
        events=[_event(event) for event in _list(fields, "events")],
        revision=_revision(fields),
        created=_bool(fields, "created"),
        canceled=_bool(fields, "canceled"),
        compacted=_int(fields, "compact_revision"),
        fragment=_bool(fields, "fragment"),
    )


def decode_failure(status: int, body: bytes) -> Failure:
    """What etcd says when the HTTP status is not 200; whatever it is, an answer comes back."""
    try:
        fields = _object(body)
        message = fields.get("message") or fields.get("error") or ""
        return Failure(_int(fields, "code"), f"{message}" or f"HTTP status {status}")
    except WireError:
        return Failure(0, f"HTTP status {status}: {body[:200]!r}")


def unwrap(line: dict[str, Any]) -> dict[str, Any]:
    """The result inside a stream's line."""
    if "error" in line:
        raise WireError(f"etcd ended the stream: {line['error']!r}")
    result = line.get("result")
    if not isinstance(result, dict):
        raise WireError(f"a line of a stream has no result: {str(line)[:200]}")
    return result


class JsonLines:
    """Cuts a stream's bytes, however they come apart, into one JSON object per line."""

    def __init__(self, limit: int = MAX_MESSAGE_BYTES) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The objects that are whole now."""
        *lines, rest = data.split(b"\n")
        found = []
        for line in lines:
            whole = b"".join((*self._parts, line))
            self._parts, self._size = [], 0
            if whole.strip():
                found.append(_object(whole))
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > self._limit:
                raise FrameTooLargeError(f"a line of more than {self._limit} bytes")
        return found


def _key_value(fields: Any) -> KeyValue:
    if not isinstance(fields, dict):
        raise WireError("a key-value pair is not a JSON object")
    return KeyValue(_text(fields, "key"), _bytes(fields, "value"), _int(fields, "mod_revision"))


def _event(fields: Any) -> Event:
    if not isinstance(fields, dict):
        raise WireError("an event is not a JSON object")
    kv = _key_value(fields.get("kv"))
    kind = fields.get("type", "PUT")
    if kind not in ("PUT", "DELETE"):
        raise WireError(f"an event of unknown type {kind!r}")
    return Event(kv.key, kv.value if kind == "PUT" else None, kv.mod_revision)


def _revision(fields: dict[str, Any]) -> int:
    header = fields.get("header", {})
    if not isinstance(header, dict):
        raise WireError("a header is not a JSON object")
    return _int(header, "revision")


def _object(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as bad:
        raise WireError(f"not JSON: {bad}") from bad
    if not isinstance(fields, dict):
        raise WireError("not a JSON object")
    return fields


def _list(fields: dict[str, Any], name: str) -> list[Any]:
    value = fields.get(name, [])
    if not isinstance(value, list):
        raise WireError(f"{name} is not a list")
    return value


def _bool(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise WireError(f"{name} is not true or false")
    return value


def _int(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name, 0)
    if isinstance(value, str) and len(value) <= _DIGITS and value.isascii() and value.isdecimal():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise WireError(f"{name} is not an integer: {str(value)[:100]}")


def _bytes(fields: dict[str, Any], name: str) -> bytes:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise WireError(f"{name} is not text")
    try:
        return b64decode(value, validate=True)
    except (Base64Error, ValueError) as bad:
        raise WireError(f"{name} is not base64: {bad}") from bad


def _text(fields: dict[str, Any], name: str) -> str:
    try:
        return _bytes(fields, name).decode()
    except UnicodeDecodeError as bad:
        raise WireError(f"{name} is not UTF-8: {bad}") from bad
