"""Command output: tables that fit the terminal for people, JSON and CSV for programs."""

import csv
import io
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from rich.console import Console

#: The least width of a column that gives room to others.
_LEAST = 6
#: The gap between columns of a table in a pipe.
_GAP = "  "
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("", "k", "M", "G", "T")


class Format(Enum):
    """Values of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `wide`: only with `-o wide` (and in CSV). `cut`: shortened before other columns; `end`
    cuts the end of a cell, `start` the start, for names that differ at their ends."""

    name: str
    wide: bool = False
    cut: str = ""
    #: Whether the heading is the user's own name, which is never capitalized.
    verbatim: bool = False

    @property
    def heading(self) -> str:
        """The heading in a pipe or file."""
        return self.name if self.verbatim else self.name.upper()


@dataclass(frozen=True, slots=True)
class Bytes:
    """A size: with a unit for people, a number for programs."""

    count: int


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate per second: short for people, exact for programs."""

    per_second: float


@dataclass(frozen=True, slots=True)
class Output:
    """The output of one command, in the requested format."""

    format: Format = Format.TABLE

    @property
    def json(self) -> bool:
        return self.format is Format.JSON

    @property
    def shortened(self) -> bool:
        """Whether cells of a table may be shortened, because the output is a terminal."""
        return self.format is Format.TABLE and sys.stdout.isatty()

    @property
    def wide(self) -> bool:
        return self.format is Format.WIDE

    def table(
        self,
        columns: Sequence[str | Column],
        rows: Iterable[Sequence[object]],
        *,
        data: Any = None,
        title: str | None = None,
    ) -> None:
        """Print one line per row. `data`: replaces the object per row in JSON."""
        known = [Column(column) if isinstance(column, str) else column for column in columns]
        if self.json:
            print_json([_object(known, row) for row in rows] if data is None else data)
        elif self.format is Format.CSV:
            _print_csv([column.name for column in known], rows)
        else:
            kept = [at for at, column in enumerate(known) if self.wide or not column.wide]
            _print_table([known[at] for at in kept], [[row[at] for at in kept] for row in rows], title, self.wide)

    def fields(self, fields: Iterable[tuple[str, object]], *, data: Any = None) -> None:
        """Print names and values of one object; in CSV, one row."""
        pairs = list(fields)
        if self.json:
            print_json({name: plain(value) for name, value in pairs} if data is None else data)
        elif self.format is Format.CSV:
            _print_csv([name for name, _ in pairs], [[value for _, value in pairs]])
        else:
            print_fields(pairs)

    def names(self, names: Iterable[str], *, column: str) -> None:
        """Print a plain list: one name per line, also readable by scripts."""
        found = list(names)
        if self.json:
            print_json(found)
        elif self.format is Format.CSV:
            _print_csv([column], [[name] for name in found])
        else:
            for name in found:
                click.echo(name)

    def gap(self) -> None:
        """Separate two tables by an empty line, so that CSV readers can split them."""
        if self.format is Format.CSV:
            click.echo("")


def console() -> "Console":
    """Standard output, without line wrapping in a file or a pipe."""
    from rich.console import Console

    return Console(soft_wrap=not sys.stdout.isatty(), highlight=False)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]], *, title: str | None = None) -> None:
    """One line per row; numbers are right-aligned."""
    Output().table([*columns], [[*row] for row in rows], title=title)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Names and values, one pair per line; a long value wraps within its column."""
    lines = [(name, shown(value)) for name, value in fields]
    if not sys.stdout.isatty():
        width = max((cell_len(name) for name, _ in lines), default=0)
        for name, text in lines:
            click.echo(f"{set_cell_size(name, width)} {text}".rstrip())
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in lines:
        table.add_row(escape(name), escape(text))
    console().print(table)


def print_names(names: Iterable[str], *, as_json: bool) -> None:
    """A plain list: one name per line, also readable by scripts."""
    Output(Format.JSON if as_json else Format.TABLE).names(names, column="name")


def done(what: str, *, as_json: bool, **fields: object) -> None:
    """Report a change."""
    if as_json:
        print_json({"done": what, **fields})
    else:
        click.echo(what)


def shown(value: object) -> str:
    """A value for people, on one line."""
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={shown(item)}" for name, item in value.items())
    text = _word(value)
    # A name or a payload may contain control characters that a terminal executes.
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _word(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.1f}"
        case Bytes():
            return human_bytes(value.count)
        case Rate():
            return human_number(value.per_second)
        case _:
            return str(value)


def plain(value: object) -> Any:
    """A value for programs."""
    match value:
        case Bytes():
            return value.count
        case Rate():
            return value.per_second
        case tuple():
            return list(value)
    return value


def human_bytes(count: float) -> str:
    """`512 B`, `1.4 KiB`, `20 MiB`: at most four digits."""
    size, unit = float(count), 0
    while size >= 1023.5 and unit < len(_BINARY) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {_BINARY[unit]}" if unit == 0 or size >= 99.95 else f"{size:.1f} {_BINARY[unit]}"


def human_number(number: float) -> str:
    """`0`, `3.2`, `45k`, `1.2M`."""
    unit = 0
    while number >= 9999.5 and unit < len(_DECIMAL) - 1:
        number, unit = number / 1000, unit + 1
    text = f"{number:.0f}" if number >= 99.95 else f"{number:.1f}".removesuffix(".0")
    return text + _DECIMAL[unit]


# --- tables -----------------------------------------------------------------------------------------------------


def _print_table(columns: list[Column], rows: list[list[object]], title: str | None, wide: bool) -> None:
    right = [_all_numeric([row[at] for row in rows]) for at in range(len(columns))]
    lines = [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, texts)) for texts in zip(*[[c.name for c in columns], *lines], strict=True)]
    screen = console()
    room = screen.width - 3 * len(columns) - 1
    # -o wide prints complete lines, whatever their length.
    if not sys.stdout.isatty() or (wide and sum(widths) > room):
        _print_plain([column.heading for column in columns], lines, widths, right, title)
        return
    widths = fitted(columns, widths, room)
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for column, width, numeric in zip(columns, widths, right, strict=True):
        name = escape(_cut(column.name, width, "end"))
        table.add_column(name, justify="right" if numeric else "left", no_wrap=True, width=width)
    for line in lines:
        cells = zip(line, widths, columns, strict=True)
        table.add_row(*(escape(_cut(text, width, column.cut)) for text, width, column in cells))
    screen.print(table)


def _print_plain(
    headings: list[str], lines: list[list[str]], widths: list[int], right: list[bool], title: str | None
) -> None:
    """For pipes and files: complete cells, one line per row, plain text."""
    if title is not None:
        click.echo(f"{title}:")
    for line in [headings, *lines]:
        cells = zip(line, widths, right, strict=True)
        texts = [
            " " * (width - cell_len(text)) + text if r else set_cell_size(text, width) for text, width, r in cells
        ]
        click.echo(_GAP.join(texts).rstrip())


def _padded(text: str, width: int, right: bool) -> str:
    return " " * (width - cell_len(text)) + text if right else set_cell_size(text, width)


def fitted(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """Widths that fit: columns with `cut` shrink first, the widest first; then the others."""
    found = list(widths)
    for giving in ([at for at, column in enumerate(columns) if column.cut], [*range(len(columns))]):
        while sum(found) > room and giving:
            widest = max(giving, key=found.__getitem__)
            if found[widest] <= _LEAST:
                break
            found[widest] -= 1
    return found


def cut_middle(text: str, width: int) -> str:
    """Fit the width: an ellipsis replaces the middle of a name, because both ends distinguish it."""
    if cell_len(text) <= width:
        return text
    head = set_cell_size(text, max(0, width - 1) // 2).rstrip()
    tail = text
    while tail and cell_len(tail) > max(0, width - 1 - cell_len(head)):
        tail = tail[1:]
    return f"{head}…{tail}"


def _cut(text: str, width: int, side: str) -> str:
    """Fit the width, with an ellipsis in place of the removed text."""
    if cell_len(text) <= width:
        return text
    if side != "start":
        return set_cell_size(text, max(0, width - 1)).rstrip() + "…"
    kept = text
    while kept and cell_len(kept) > width - 1:
        kept = kept[1:]
    return f"…{kept}"


def _all_numeric(cells: list[object]) -> bool:
    """Whether the cells are numbers, or empty, with at least one number."""
    known = [cell for cell in cells if cell is not None]
    numbers = [one for one in known if isinstance(one, int | float | Bytes | Rate) and not isinstance(one, bool)]
    return bool(known) and len(numbers) == len(known)


def _object(columns: Sequence[Column], row: Sequence[object]) -> dict[str, Any]:
    return {column.name: plain(cell) for column, cell in zip(columns, row, strict=True)}


# --- CSV --------------------------------------------------------------------------------------------------------


def _print_csv(names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    click.echo(csv_line(names), nl=False)
    for row in rows:
        click.echo(csv_line(row), nl=False)


def csv_line(row: Sequence[object]) -> str:
    """A row as in RFC 4180, but with the system's line end; lists and maps are JSON."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([_csv_cell(plain(cell)) for cell in row])
    return text.getvalue()


def _csv_cell(value: Any) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return value
