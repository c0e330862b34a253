"""Log lines that repeat are counted, not repeated."""

import io
import logging
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from weir.server.logs import BURST, CountingHandler
from weir.testing.processes.up import UpProcess


class Lines:
    """A handler whose clock stands still unless it is moved."""

    def __init__(self) -> None:
        self.now, self.stream = 0.0, io.StringIO()
        self.handler = CountingHandler(self.stream, burst=2, window_s=60, monotonic=lambda: self.now)

    def say(self, message: object, *arguments: object, level: int = logging.WARNING, name: str = "weir.x") -> None:
        self.handler.handle(logging.LogRecord(name, level, __file__, 1, message, arguments, None))

    @property
    def told(self) -> list[str]:
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return text.splitlines()


@pytest.fixture
def lines() -> Iterator[Lines]:
    made = Lines()
    yield made
    made.handler.close()


def test_some_of_a_kind_are_written_and_the_rest_of_the_window_is_one_line(lines: Lines) -> None:
    for number in range(1000):
        lines.say("connection of %d is closed", number)
    lines.say("something else")
    assert lines.told == ["connection of 0 is closed", "connection of 1 is closed", "something else"]
    lines.now = 60
    lines.say("connection of %d is closed", 1000)
    assert lines.told == [
        "998 more like this within 60 s, the last: connection of 999 is closed",
        "connection of 1000 is closed",
    ]


def test_kinds_are_told_apart_by_part_level_and_what_is_said(lines: Lines) -> None:
    for _ in range(2):
        lines.say("a")
        lines.say("a", level=logging.ERROR)
        lines.say("a", name="weir.y")
        lines.say(ValueError("b"))
    assert len(lines.told) == 8


def test_debug_records_are_all_written(lines: Lines) -> None:
    for _ in range(10):
        lines.say("detail", level=logging.DEBUG)
    assert len(lines.told) == 10


def test_what_was_counted_is_said_at_the_end(lines: Lines) -> None:
    for _ in range(5):
        lines.say("again")
    lines.handler.close()
    assert lines.told == ["again", "again", "3 more like this within 60 s, the last: again"]


@pytest.mark.process
def test_connections_that_speak_nonsense_do_not_fill_the_log(tmp_path: Path) -> None:
    up = UpProcess(tmp_path)
    try:
        up.start()
        host, _, port = up.kafka.rpartition(":")
        for _ in range(200):
            with socket.create_connection((host, int(port)), timeout=60) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                with suppress(ConnectionError):
                    while stranger.recv(4096):  # until it is closed: it was looked at
                        pass
        assert up.stop() == 0
        closed = [line for line in up.log.splitlines() if "the client uses HTTP" in line]
        counted = [int(found[1]) for line in closed if (found := re.search(r"repeated=(\d+)", line))]
        assert counted
        assert len(closed) <= len(counted) * (BURST + 1)  # one window, unless this machine takes a minute for them
        assert len(closed) - len(counted) + sum(counted) == 200
    finally:
        up.close()
