"""Results of SQL: tables for people, JSON for programs."""

import base64
import json
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from datetime import date, datetime
from typing import Any, Protocol

import click

from weir.cli.output import print_json, print_table


class Result(Protocol):
    @property
    def columns(self) -> Sequence[str]: ...

    @property
    def rows(self) -> Sequence[Sequence[Any]]: ...


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, as_json: bool) -> None:
    """One result."""
    if as_json:
        print_json([dict(zip(columns, map(plain, row), strict=True)) for row in rows])
    else:
        print_table(columns, ([shown(cell) for cell in row] for row in rows))


def print_live(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, first: bool, as_json: bool) -> None:
    """Some rows of a result that goes on: a line each."""
    if first and not as_json:
        click.secho(" | ".join(columns), bold=True)
    for row in rows:
        if as_json:
            click.echo(json.dumps(dict(zip(columns, map(plain, row), strict=True)), ensure_ascii=False))
        else:
            click.echo(" | ".join(str(shown(cell)) for cell in row))


def plain(value: Any) -> Any:
    """A value of Spark's as JSON has it."""
    match value:
        case bool() | int() | float() | str() | None:
            return value
        case bytes() | bytearray():
            return _text(bytes(value))
        case dict():
            return {str(key): plain(one) for key, one in value.items()}
        case tuple() if hasattr(value, "__fields__"):  # a row of Spark's
            return {key: plain(one) for key, one in zip(value.__fields__, value, strict=True)}
        case list() | tuple():
            return [plain(one) for one in value]
    return value.isoformat() if isinstance(value, datetime | date) else str(value)


def shown(value: Any) -> Any:
    """The same as people read it; whole numbers stay numbers, and stand to the right."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | str():
            return value
        case float():
            return f"{value:g}" if abs(value) < 1e15 and value == round(value, 6) else repr(value)
        case datetime():
            return value.isoformat(sep=" ")
    found = plain(value)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def print_watched(tables: Generator[Result], *, as_json: bool) -> None:
    """The same table again and again, in place on a terminal, until it is interrupted: with JSON, a line each."""
    with closing(tables):
        for found in tables:
            if as_json:
                lines = [dict(zip(found.columns, map(plain, row), strict=True)) for row in found.rows]
                click.echo(json.dumps(lines, ensure_ascii=False))
            else:
                click.clear()
                print_rows(found.columns, found.rows, as_json=False)
                click.echo(f"{datetime.now().astimezone():%H:%M:%S}; Ctrl-C ends it")
            sys.stdout.flush()
