"""Log lines are fields, with whatever the part says about topic and connection."""

import asyncio
import json
import logging
import sys

import pytest

from weir.runtime.tasks import log_about
from weir.server.logs import JsonLines, Logfmt


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("weir.gateway.pulsar.session", logging.WARNING, __file__, 1, message, arguments, None)
    vars(made).update(extra)
    made.created = 0.0
    return made


def test_logfmt_quotes_only_what_needs_it() -> None:
    line = Logfmt().format(record("slow %s", "reader", topic="persistent://a/b/c", connection="127.0.0.1:5"))
    assert line == (
        "at=1970-01-01T00:00:00.000Z level=warning part=gateway.pulsar.session "
        'msg="slow reader" topic=persistent://a/b/c connection=127.0.0.1:5'
    )


@pytest.mark.parametrize("text", ['say "hi"', "two\nlines", "a=b", ""])
def test_a_logfmt_line_stays_one_line(text: str) -> None:
    line = Logfmt().format(record("x", topic=text))
    assert "\n" not in line
    assert json.loads(line.partition("topic=")[2]) == text


def test_json_lines_hold_the_same_fields() -> None:
    fields = json.loads(JsonLines().format(record("x", topic="t")))
    assert fields == {
        "at": "1970-01-01T00:00:00.000Z",
        "level": "warning",
        "part": "gateway.pulsar.session",
        "msg": "x",
        "topic": "t",
    }


def test_an_exception_is_a_field() -> None:
    made = record("failed")
    try:
        raise ValueError("why")
    except ValueError:
        made.exc_info = sys.exc_info()
    assert "ValueError: why" in json.loads(JsonLines().format(made))["error"]


async def test_a_line_carries_what_its_task_and_those_before_it_are_about() -> None:
    async def inner() -> dict[str, object]:
        return json.loads(JsonLines().format(record("x")))

    async def outer() -> dict[str, object]:
        log_about(connection="127.0.0.1:5")
        return await asyncio.create_task(inner())

    assert (await asyncio.create_task(outer()))["connection"] == "127.0.0.1:5"
    assert "connection" not in await inner()
