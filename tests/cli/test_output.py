"""Tables that fit, sizes that people read, and CSV: what all commands print with."""

import json
from typing import Any

import pytest
from rich.cells import cell_len

from weir.cli import output
from weir.cli.output import Bytes, Column, Format, Output, Rate, csv_line, fitted, human_bytes, human_number

TOPICS = (Column("topic", cut="start"), "messages", Column("note", wide=True), Column("payload", cut="end"))
ROW = ("persistent://public/default/" + "very-long-" * 9 + "end", 12, "n", "x" * 200)


class Terminal:
    """Standard output as a terminal of some width."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_a_table_is_never_wider_than_the_terminal_and_a_row_is_one_line(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Terminal(monkeypatch, columns)
    Output().table(TOPICS, [ROW])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5  # the head, the row, and the lines around them
    assert max(map(cell_len, lines)) <= columns
    assert "end" in lines[3]  # of a name, the end is kept, which tells it apart
    assert "12" in lines[3]
    assert "…" in lines[3]


def test_a_pipe_gets_everything_in_full_without_lines_around_it(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(TOPICS, [ROW])
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["TOPIC", "MESSAGES", "PAYLOAD"]
    assert row.split() == [ROW[0], "12", ROW[3]]


def test_wide_shows_more_columns_and_cuts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Terminal(monkeypatch, 80)
    Output(Format.WIDE).table(TOPICS, [ROW])
    shown = capsys.readouterr().out
    assert ROW[0] in shown
    assert "NOTE" in shown


def test_csv_has_every_column_and_plain_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Format.CSV).table(("a", Column("b", wide=True), "c"), [("x,y", Bytes(2048), ["p", 'q"'])])
    assert capsys.readouterr().out == 'a,b,c\n"x,y",2048,"[""p"", ""q\\""""]"\n'
    assert csv_line((True, None, Rate(1.25))) == "true,,1.25\n"


def test_json_is_the_rows_unless_the_command_says_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Format.JSON).table(("a", "b"), [(1, Bytes(5))])
    assert json.loads(capsys.readouterr().out) == [{"a": 1, "b": 5}]


def test_what_a_terminal_would_obey_is_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("name",), [("\x1b[31mred\n",)])
    assert capsys.readouterr().out.splitlines()[1] == r"\x1b[31mred\n"


def test_columns_that_may_be_cut_give_way_first() -> None:
    columns = [Column("a"), Column("b", cut="end"), Column("c", cut="end")]
    assert fitted(columns, [10, 50, 20], 45) == [10, 17, 18]
    assert fitted(columns, [30, 30, 30], 30) == [18, 6, 6]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (150_000, "146 KiB"), (5 * 1024**3, "5.0 GiB")],
)
def test_sizes_have_units(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(("number", "text"), [(0.0, "0"), (3.25, "3.2"), (9999.0, "9999"), (45_100.0, "45.1k")])
def test_rates_are_short(number: float, text: str) -> None:
    assert human_number(number) == text


def test_a_value_is_a_word_for_people() -> None:
    cells: list[Any] = [None, True, 1.25, [1, "a"], {"a": 1}]
    assert [output.shown(cell) for cell in cells] == ["", "yes", "1.2", "1, a", "a=1"]
