"""SQL results as they arrive: tables for people, JSON and CSV for programs; remarks for people only."""

import json
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import click

from weir.cli.output import Column, Format, Output

if TYPE_CHECKING:
    from rich.status import Status

    from weir.spark.serving import protocol as m


class Result(Protocol):
    @property
    def columns(self) -> Sequence[str]: ...

    @property
    def rows(self) -> Sequence[Sequence[Any]]: ...


class Spinner:
    """Shows on a terminal's standard error that something takes long."""

    def __init__(self) -> None:
        self._status: Status | None = None

    def start(self, what: str) -> None:
        if self._status is not None or not sys.stderr.isatty():
            return
        from rich.console import Console

        self._status = Console(stderr=True).status(what)
        self._status.start()

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


class Printer:
    """Prints the answers of a session."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._as_json = out.json
        self._csv = out.format is Format.CSV
        self.spinner = Spinner()
        self._head: m.Head | None = None
        self._rows: list[Any] = []
        self._first = True

    def take(self, answer: "m.Answer") -> None:
        from weir.spark.serving import protocol as m

        match answer:
            case m.Starting():
                self._wait(over=answer.over)
            case m.Head():
                self.spinner.stop()
                self._begin(answer)
            case m.Part():
                self._part(answer)
            case m.Tail():
                self._end(answer)
            case m.Word():
                self.spinner.stop()
                self._word(answer)

    def _wait(self, *, over: bool) -> None:
        if over:
            self.spinner.stop()
        else:
            self.spinner.start("starting Spark; later statements need no start")

    def _begin(self, head: "m.Head") -> None:
        self._head, self._rows = head, []
        if head.live and not self._as_json:
            click.secho(_csv([head.columns]) if self._csv else " | ".join(head.columns), bold=not self._csv)

    def _part(self, part: "m.Part") -> None:
        if self._head is None or not self._head.live:
            self._rows += part.rows
            return
        for row in part.rows:
            click.echo(bytes(row).decode() if self._as_json else self._line(row))
        sys.stdout.flush()

    def _line(self, row: Any) -> str:
        cells = json.loads(bytes(row))
        return _csv([cells]) if self._csv else " | ".join(map(str, cells))

    def _end(self, tail: "m.Tail") -> None:
        head, self._head = self._head, None
        if head is None:
            return
        if head.watched:
            self._watched(head)
            return
        if not head.live:
            self._whole(head)
            if tail.more and not self._as_json:
                said = f"... and more; give --limit, or LIMIT, for more than {tail.rows} rows"
                click.echo(said, err=self._csv or not sys.stdout.isatty())
        _remark(f"{tail.rows} {'row' if tail.rows == 1 else 'rows'}, {tail.took_ms / 1000:.2f} s")

    def _whole(self, head: "m.Head") -> None:
        if self._as_json:
            from weir.spark.serving.protocol import json_array

            click.echo(json_array(bytes(row) for row in self._rows).decode())
        else:
            self._out.table(_columns(head.columns), [json.loads(bytes(row)) for row in self._rows])

    def _watched(self, head: "m.Head") -> None:
        if self._as_json:
            click.echo(f"[{','.join(bytes(row).decode() for row in self._rows)}]")
        else:
            click.clear()
            self._whole(head)
            click.echo(f"{datetime.now().astimezone():%H:%M:%S}; Ctrl-C ends it")
        sys.stdout.flush()

    def _word(self, word: "m.Word") -> None:
        if self._as_json:
            click.echo(json.dumps({"done": word.what, **word.fields}, indent=2, ensure_ascii=False))
        else:
            click.echo(word.what, err=self._csv)
            _remark(f"{word.took_ms / 1000:.2f} s")


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]], out: Output) -> None:
    """Print one result."""
    from weir.spark.serving.protocol import as_object, json_array, names_of, shown

    if out.json:
        names = names_of(columns)
        click.echo(json_array(as_object(names, row) for row in rows).decode())
    else:
        out.table(_columns(columns), [[shown(cell) for cell in row] for row in rows])


def print_watched(tables: Generator[Result], out: Output) -> None:
    """Print the table repeatedly, in place on a terminal, until interrupted; JSON: one line each."""
    from weir.spark.serving.protocol import as_object, names_of

    with closing(tables):
        for found in tables:
            if out.json:
                names = names_of(found.columns)
                click.echo(f"[{','.join(as_object(names, row).decode() for row in found.rows)}]")
            else:
                click.clear()
                print_rows(found.columns, found.rows, out)
                click.echo(f"{datetime.now().astimezone():%H:%M:%S}; Ctrl-C ends it")
            sys.stdout.flush()


def _columns(names: Sequence[str]) -> list[Column]:
    """Columns under the names in the statement."""
    return [Column(name, verbatim=True) for name in names]


def _remark(text: str) -> None:
    """Print a remark on a terminal only: redirected output and error files stay clean."""
    if sys.stderr.isatty():
        click.secho(text, dim=True, err=True)


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    import csv
    import io

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().rstrip("\n")
