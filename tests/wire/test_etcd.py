"""etcd's JSON gateway, as bytes."""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import FrameTooLargeError, WireError
from weir.testing.codecs.fuzzing import Codec, fuzz
from weir.wire import etcd
from weir.wire.etcd import Event, Failure, JsonLines, KeyValue, LeaseAnswer, RangeAnswer, TxnAnswer, WatchAnswer


def b64(data: bytes) -> str:
    return b64encode(data).decode()


def fields(body: bytes) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(body)
    return parsed


def test_a_conditional_put_is_a_transaction_on_the_keys_last_revision() -> None:
    assert fields(etcd.put_request("/k", b"\xff", expect=7, lease_id=3)) == {
        "compare": [{"key": b64(b"/k"), "target": "MOD", "result": "EQUAL", "mod_revision": "7"}],
        "success": [{"request_put": {"key": b64(b"/k"), "value": b64(b"\xff"), "lease": "3"}}],
    }
    assert fields(etcd.put_request("/k", b"", expect=None, lease_id=0))["compare"] == []


@given(st.text(), st.text())
def test_a_prefixs_range_holds_exactly_the_keys_that_start_with_it(prefix: str, other: str) -> None:
    request = fields(etcd.list_request(prefix))
    start, end = b64decode(request["key"]), b64decode(request["range_end"])

    def inside(key: str) -> bool:
        return start <= key.encode() and (end == b"\0" or key.encode() < end)

    if prefix or other > "\0":
        assert inside(prefix + other)
    if other:
        assert inside(other) == other.startswith(prefix)


def test_an_answer_leaves_out_what_is_zero_empty_or_false() -> None:
    assert etcd.decode_range(b'{"header":{"revision":"5"}}') == RangeAnswer([], 5, False)
    assert etcd.decode_txn(b'{"header":{"revision":"5"}}') == TxnAnswer(False, 5)
    assert etcd.decode_lease(b'{"result":{"header":{},"ID":"12"}}') == LeaseAnswer(12, 0)
    assert etcd.decode_lease(b'{"ID":"12","TTL":"60"}') == LeaseAnswer(12, 60)
    kv = {"key": b64(b"/k"), "mod_revision": "4"}
    body = json.dumps({"header": {"revision": "5"}, "kvs": [kv], "more": True}).encode()
    assert etcd.decode_range(body) == RangeAnswer([KeyValue("/k", b"", 4)], 5, True)


def test_a_watch_message_has_puts_and_deletions() -> None:
    put = {"kv": {"key": b64(b"/k"), "mod_revision": "4", "value": b64(b"v")}}
    gone = {"type": "DELETE", "kv": {"key": b64(b"/k"), "mod_revision": "5"}}
    answer = etcd.decode_watch({"result": {"header": {"revision": "9"}, "events": [put, gone]}})
    events = [Event("/k", b"v", 4), Event("/k", None, 5)]
    assert answer == WatchAnswer(events, 9, created=False, canceled=False, compacted=0, fragment=False)
    with pytest.raises(WireError):
        etcd.decode_watch({"error": {"grpc_code": 14}})


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        (b'{"error":"no lease","code":5,"message":"no lease"}', Failure(5, "no lease")),
        (b"", Failure(0, "HTTP status 500: b''")),
        (b"[]", Failure(0, "HTTP status 500: b'[]'")),
        (b'{"code":"x"}', Failure(0, 'HTTP status 500: b\'{"code":"x"}\'')),
    ],
)
def test_whatever_comes_with_a_bad_status_is_a_failure(body: bytes, failure: Failure) -> None:
    assert etcd.decode_failure(500, body) == failure


@given(st.lists(st.dictionaries(st.text(), st.text())), st.data())
def test_lines_come_out_whole_however_the_stream_is_cut(
    objects: list[dict[str, str]], data: st.DataObject
) -> None:
    stream = b"".join(
        json.dumps(each).encode() + data.draw(st.sampled_from([b"\n", b"\r\n", b"\n\n"])) for each in objects
    )
    lines = JsonLines()
    found: list[dict[str, Any]] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += lines.feed(stream[:size])
        stream = stream[size:]
    assert found == objects


def test_a_line_without_end_is_refused_at_the_limit() -> None:
    lines = JsonLines(limit=10)
    lines.feed(b"{" * 10)
    with pytest.raises(FrameTooLargeError):
        lines.feed(b"{")


def sample(dice: Random) -> bytes:
    """A stream line, of which every decoder understands a part."""
    kv = {
        "key": b64(b"/k"),
        "mod_revision": str(dice.getrandbits(40)),
        "value": b64(dice.randbytes(5)),
        "version": "1",
    }
    answer = {
        "header": {"revision": "7"},
        "kvs": [kv],
        "succeeded": True,
        "ID": "77",
        "TTL": "5",
        "events": [{"kv": kv}, {"type": "DELETE", "kv": kv}],
    }
    return json.dumps({"result": answer, **answer}).encode() + b"\n"


def decode_stream(data: bytes) -> None:
    for line in JsonLines(limit=4096).feed(data):
        etcd.decode_watch(line)


@pytest.mark.slow
@pytest.mark.parametrize(
    "decode", [etcd.decode_range, etcd.decode_txn, etcd.decode_lease, decode_stream], ids=lambda d: d.__name__
)
def test_damaged_answers_raise_nothing_but_wire_errors(decode: Callable[[bytes], object]) -> None:
    assert fuzz(Codec("etcd", sample, decode), 10_000, Random("etcd")) > 1000


@given(st.binary())
def test_no_bytes_at_all_break_the_reading_of_a_failure(body: bytes) -> None:
    assert etcd.decode_failure(500, body).message
