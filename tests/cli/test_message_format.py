"""What `weir consume -F` prints of a message, and what `weir produce` makes of what it reads."""

import io
from dataclasses import replace
from typing import Any

import pytest

from weir.cli.message_format import MessageFormat, Printed, unescaped
from weir.cli.produce import InputFormat, Reading, read_all
from weir.client.pulsar.messages import Incoming, Outgoing
from weir.model.errors import ConfigError
from weir.wire.pulsar.ids import MessageId

MESSAGE = Incoming(
    id=MessageId(7, 3, 1, 2),
    payload=b"value\xff",
    key=b"key",
    properties={"a": "1", "b": "2"},
    publish_ms=1_700_000_000_000,
    event_ms=5,
    producer="p",
    redelivered=4,
    batch_size=3,
    offset=99,
)


@pytest.mark.parametrize(
    ("pattern", "printed"),
    [
        ("%k=%s", b"key=value\xff"),
        ("%v%n", b"value\xff\n"),
        (r"%K\t%S\n", b"3\t6\n"),
        ("%h", b"a=1,b=2"),
        ("%t/%p@%o %i", b"orders/1@99 7:3:1:2"),
        ("%T %d %E", b"1700000000000 2023-11-14T22:13:20.000Z 5"),
        ("%P %r 100%%", b"p 4 100%"),
        (r"\x1f\0\\", b"\x1f\0\\"),
        ("plain ä", "plain ä".encode()),
    ],
)
def test_each_word_of_a_format_is_printed(pattern: str, printed: bytes) -> None:
    assert MessageFormat(pattern).render(Printed("orders", 1, MESSAGE)) == printed


def test_what_is_not_there_is_empty_and_has_no_length() -> None:
    bare = replace(MESSAGE, key=None, payload=b"", null=True, properties={})
    assert MessageFormat("%k|%K|%s|%S|%h").render(Printed("t", -1, bare)) == b"|-1||-1|"


@pytest.mark.parametrize("pattern", ["%y", "%", r"\q"])
def test_an_unknown_word_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError):
        MessageFormat(pattern)


def test_a_separator_may_be_written_as_in_c() -> None:
    assert unescaped(r"\t-\x41\\") == b"\t-A\\"


LIKE = Outgoing(b"", properties={"h": "1"})


def made(line: bytes, **how: Any) -> tuple[Any, ...]:
    message = Reading(LIKE, **how).message(line)
    return message.key, bytes(message.payload), dict(message.properties), message.null


def test_lines_are_messages_and_may_begin_with_a_key() -> None:
    assert made(b"a:b:c") == (None, b"a:b:c", {"h": "1"}, False)
    assert made(b"a:b:c", key_separator=b":") == ("a", b"b:c", {"h": "1"}, False)
    assert made(b"\xff\tx", key_separator=b"\t") == (b"\xff", b"x", {"h": "1"}, False)
    assert made(b"a:", key_separator=b":", empty_is_null=True) == ("a", b"", {"h": "1"}, True)
    with pytest.raises(ConfigError, match="has no key"):
        made(b"nothing", key_separator=b":")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"payload": "x", "key": "k", "headers": {"a": "b"}}', ("k", b"x", {"h": "1", "a": "b"}, False)),
        (b'{"payload": "x", "properties": {"a": "b"}}', (None, b"x", {"h": "1", "a": "b"}, False)),
        (b'{"payload_base64": "/w==", "key_base64": "/w=="}', (b"\xff", b"\xff", {"h": "1"}, False)),
        (b'{"payload": {"id": 1}}', (None, b'{"id": 1}', {"h": "1"}, False)),
        (b'{"payload": null, "key": "k"}', ("k", b"", {"h": "1"}, True)),
    ],
)
def test_json_is_read_as_it_is_printed(line: bytes, expected: tuple[Any, ...]) -> None:
    assert made(line, format=InputFormat.JSON) == expected


@pytest.mark.parametrize("line", [b"no json", b"[]", b"{}", b'{"payload_base64": "!"}'])
def test_json_that_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ConfigError, match="is not a message"):
        made(line, format=InputFormat.JSON)


async def read(data: bytes, monkeypatch: pytest.MonkeyPatch, **how: Any) -> list[bytes]:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    return [piece async for piece in read_all(["-"], Reading(LIKE, **how))]


async def test_standard_input_is_cut_at_the_delimiter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await read(b"a\r\nb\n\nc", monkeypatch) == [b"a", b"b", b"", b"c"]
    assert await read(b"a\n;b;", monkeypatch, delimiter=b";") == [b"a\n", b"b"]
    assert await read(b"a\nb\n", monkeypatch, format=InputFormat.WHOLE) == [b"a\nb\n"]
    assert await read(b"{}\n\n", monkeypatch, format=InputFormat.JSON) == [b"{}"]


async def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="/no/such/file"):
        _ = [piece async for piece in read_all(["/no/such/file"], Reading(LIKE))]
