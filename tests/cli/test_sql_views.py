"""What `weir sql` prints: results for programs on standard output, remarks for people only."""

import pytest
from msgspec import Raw

from weir.cli.output import Format, Output
from weir.cli.sql_views import Printer
from weir.spark.serving import protocol as m


def printed(capsys: pytest.CaptureFixture[str], out: Format, *rows: bytes, live: bool = False) -> str:
    printer = Printer(Output(out))
    for answer in (
        m.Starting(),
        m.Starting(over=True),
        m.Head(["Id", "name"], live=live),
        m.Part([Raw(row) for row in rows]),
        m.Tail(len(rows), 120),
    ):
        printer.take(answer)
    found = capsys.readouterr()
    assert found.err == ""  # nobody looks at it
    return found.out


def test_a_result_is_a_table_or_csv_with_the_names_that_the_statement_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert printed(capsys, Format.TABLE, b'[1,"x, y"]') == "Id  name\n 1  x, y\n"
    assert printed(capsys, Format.CSV, b'[1,"x, y"]').splitlines() == ["Id,name", '1,"x, y"']


def test_live_rows_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, Format.TABLE, b'[1,"x"]', live=True) == "Id | name\n1 | x\n"
    assert printed(capsys, Format.CSV, b'[1,"x"]', live=True) == "Id,name\n1,x\n"
    assert printed(capsys, Format.JSON, b'{"Id":1}', b'{"Id":2}', live=True) == '{"Id":1}\n{"Id":2}\n'


def test_json_is_one_array(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, Format.JSON, b'{"Id":1}') == '[\n  {\n    "Id": 1\n  }\n]\n'
    assert printed(capsys, Format.JSON) == "[]\n"


def test_a_person_is_told_how_many_rows_and_how_long_it_took(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    printer = Printer(Output(Format.JSON))
    printer.take(m.Head(["a"]))
    printer.take(m.Tail(1, 1234))
    told = capsys.readouterr()
    assert told.out == "[]\n"
    assert "1 row, 1.23 s" in told.err


def test_a_person_sees_that_spark_starts_and_programs_do_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for looked_at in (True, False):
        monkeypatch.setattr("sys.stderr.isatty", lambda at=looked_at: at, raising=False)
        printer = Printer(Output(Format.JSON))
        printer.take(m.Starting())
        printer.take(m.Starting(over=True))
        printer.take(m.Head(["a"]))
        printer.take(m.Tail(0, 1))
        told = capsys.readouterr()
        assert told.out == "[]\n"
        assert ("starting Spark" in told.err) == looked_at
