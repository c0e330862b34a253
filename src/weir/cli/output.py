"""How commands answer: tables for people, JSON for programs."""

import json
import sys
from collections.abc import Iterable
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def console() -> Console:
    """Standard output; not wrapped when it goes to a file or a pipe."""
    return Console(soft_wrap=not sys.stdout.isatty(), highlight=False)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]], *, title: str | None = None) -> None:
    """One line per row; numbers stand to the right."""
    lines = [list(row) for row in rows]
    table = Table(title=title, title_justify="left", title_style="bold")
    for at, column in enumerate(columns):
        numeric = bool(lines) and all(isinstance(line[at], int | float) for line in lines)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for line in lines:
        table.add_row(*(escape(shown(cell)) for cell in line))
    console().print(table)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Names and values, one pair per line."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields:
        table.add_row(name, escape(shown(value)))
    console().print(table)


def print_names(names: Iterable[str], *, as_json: bool) -> None:
    """A plain list: one name per line, which scripts can read as well."""
    names = list(names)
    if as_json:
        print_json(names)
    else:
        for name in names:
            click.echo(name)


def done(what: str, *, as_json: bool, **fields: object) -> None:
    """Something was changed."""
    if as_json:
        print_json({"done": what, **fields})
    else:
        click.echo(what)


def shown(value: object) -> str:
    """A value as people read it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={shown(item)}" for name, item in value.items())
    return str(value)
