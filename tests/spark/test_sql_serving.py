"""The server of `weir sql`: what it says, whom it serves, and when it ends; with a real socket, without Spark."""

import base64
import json
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from weir.model.errors import ConfigError, SparkSetupError, SqlError, WireError
from weir.spark.serving import link, protocol
from weir.spark.serving import protocol as m
from weir.spark.serving.protocol import as_object, json_array, names_of, plain, shown, trace_of
from weir.spark.serving.server import Server
from weir.spark.sql import console
from weir.testing.kinds import rounds


def no_spark() -> Any:
    raise SparkSetupError("there is no Spark here")


class Served:
    """A server in a thread, and those who talk to it."""

    def __init__(self, place: Path, idle_s: float = 3600.0) -> None:
        self.path = place / "sql-0123456789ab"
        self.server = Server(self.path, no_spark, idle_s=idle_s)
        self._thread = threading.Thread(target=self.server.serve, daemon=True)
        self._thread.start()
        self.heard: list[m.Answer] = []

    def hello(self, **fields: Any) -> m.Hello:
        return m.Hello(protocol.fingerprint(), "http://127.0.0.1:1", kafka="127.0.0.1:1", **fields)

    def open(self, **fields: Any) -> link.ServerLink:
        def connected() -> Any:
            connection = link.connect(self.path)
            assert connection is not None
            m.send(connection, self.hello(**fields))
            assert isinstance(m.receive_answer(connection), m.Welcome)
            return connection

        return link.ServerLink(connected)

    def run(self, session: link.ServerLink, text: str) -> bool:
        return session.run([text], self.heard.append)

    def ended(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="weir-", dir="/tmp") as found:  # the path of a socket is short
        yield Path(found)


@pytest.fixture
def served(place: Path) -> Iterator[Served]:
    found = Served(place)
    yield found
    found.server.stop()
    found.ended()


def test_statements_are_done_and_errors_are_a_sentence_with_what_to_do(served: Served) -> None:
    session = served.open()
    assert served.run(session, "DROP VIEW IF EXISTS v")
    (word,) = served.heard
    assert isinstance(word, m.Word)
    assert word.what == "there is no view v"
    with pytest.raises(SqlError, match="statement 2, line 1: there is no view v; nothing was done"):
        served.run(session, "DROP VIEW IF EXISTS v; DROP VIEW v")
    assert len(served.heard) == 1
    with pytest.raises(SqlError, match="AS is missing at the end"):
        served.run(session, "CREATE STREAM x")
    session.close()


def test_ctrl_c_ends_what_goes_on_and_the_session_stays(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.rest, "all_streams", lambda _: [])
    session = served.open(as_json=True)

    def interrupt(answer: m.Answer) -> None:
        if isinstance(answer, m.Tail):
            raise KeyboardInterrupt

    assert session.run(["WATCH STREAMS"], interrupt) is False
    assert served.run(session, "SHOW STREAMS")
    head, tail = served.heard
    assert isinstance(head, m.Head)
    assert isinstance(tail, m.Tail)
    assert (head.columns[0], tail.rows) == ("stream", 0)
    session.close()


def test_each_client_has_a_session_of_its_own_and_status_counts_them(served: Served) -> None:
    first, second = served.open(), served.open()
    served.run(first, "DROP VIEW IF EXISTS v")
    served.run(second, "DROP VIEW IF EXISTS v")
    told = link.ask(served.path, m.AskStatus())
    assert isinstance(told, m.Status)
    assert (told.pid, told.statements, told.spark, told.clients) == (os.getpid(), 2, False, 3)
    first.close()
    second.close()


def test_nobody_else_may_come_in(served: Served, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stat.S_IMODE(served.path.stat().st_mode) == 0o600
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    assert stat.S_IMODE(protocol.runtime_folder().stat().st_mode) == 0o700
    (place / "weir").chmod(0o777)
    assert stat.S_IMODE(protocol.runtime_folder().stat().st_mode) == 0o700
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)  # it is another's
    with pytest.raises(SparkSetupError, match="no private folder"):
        protocol.runtime_folder()


def test_a_server_with_other_code_leaves_its_name_to_another(served: Served) -> None:
    connection = link.connect(served.path)
    assert connection is not None
    m.send(connection, m.Hello("other", "http://127.0.0.1:1"))
    assert isinstance(m.receive_answer(connection), m.Ended)
    connection.close()
    served.ended()
    assert not served.path.exists()
    assert link.connect(served.path) is None


def test_a_server_that_nobody_uses_ends(place: Path) -> None:
    served = Served(place, idle_s=0.0)
    served.ended()
    assert not served.path.exists()


def test_a_server_whose_spark_does_not_start_ends_and_a_prompt_goes_on_with_the_next(served: Served) -> None:
    session = served.open()
    with pytest.raises(SqlError, match="there is no Spark here"):
        served.run(session, "SELECT 1")
    session.close()
    served.ended()


def test_a_frame_of_something_else_is_refused(served: Served) -> None:
    connection = link.connect(served.path)
    assert connection is not None
    connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert m.receive_answer(connection) is None
    connection.close()
    assert isinstance(link.ask(served.path, m.AskStatus()), m.Status)


def test_what_java_said_comes_along_for_those_who_ask() -> None:
    wrong = link.error_of(m.Failed("no such column", "look again", "at org.apache.spark.X"))
    assert (str(wrong), trace_of(wrong)) == ("no such column (look again)", "at org.apache.spark.X")
    assert isinstance(link.error_of(m.Failed("x", misused=True)), ConfigError)
    assert trace_of(SqlError("x")) == ""


def test_values_become_valid_json() -> None:
    nan = float("nan")
    row = (1, None, True, 1.5, nan, -float("inf"), Decimal("12345678901234567890.10"), b"\xff\x00", "ü\n")
    text = as_object(names_of(list("abcdefghi")), row)
    told = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert b"12345678901234567890.10" in text
    assert told | {"g": 0} == {
        "a": 1,
        "b": None,
        "c": True,
        "d": 1.5,
        "e": "NaN",
        "f": "-Infinity",
        "g": 0,
        "h": base64.b64encode(b"\xff\x00").decode(),
        "i": "ü\n",
    }
    moment = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
    nested = Row("x", "y")([date(2026, 5, 1), None], {1: moment, 2: moment.replace(tzinfo=None)})
    assert plain(nested) == {
        "x": ["2026-05-01", None],
        "y": {"1": "2026-05-01T12:30:00Z", "2": "2026-05-01T12:30:00"},
    }
    assert json.loads(json_array([as_object(names_of(["id", "id"]), (1, 2))])) == [{"id": 1, "id_2": 2}]
    assert json.loads(json_array([])) == []


def test_people_read_values_in_their_way() -> None:
    cells = [None, True, 7, 2.50, b"text", b"\xff", datetime(2026, 5, 1, 12, tzinfo=UTC), [1, None]]
    assert [shown(cell) for cell in cells] == [
        *("null", "true", 7, "2.5", "text", "/w==", "2026-05-01 12:00:00", "[1,null]")
    ]


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.binary() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=rounds(40), deadline=None)
@given(st.lists(_VALUES, max_size=4))
def test_any_value_becomes_json_that_a_strict_reader_reads(row: list[Any]) -> None:
    text = as_object(names_of(["x"] * len(row)), row)
    assert len(json.loads(text, parse_constant=pytest.fail)) == len(row)


@settings(max_examples=rounds(40), deadline=None)
@given(st.binary(max_size=40))
def test_no_bytes_make_the_reader_of_frames_fail_in_another_way(data: bytes) -> None:
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        try:
            m.receive_request(ours)
        except WireError:
            return


def test_the_stack_of_java_that_spark_keeps_beside_an_exception_is_part_of_what_it_said() -> None:
    below = ValueError("no such column")
    below._stackTrace = "org.apache.spark.sql.AnalysisException: no\n\tat org.apache.spark.X\n"  # type: ignore[attr-defined]
    wrong = SqlError("no such column")
    wrong.__cause__ = below
    assert trace_of(wrong).endswith("\n\tat org.apache.spark.X")
