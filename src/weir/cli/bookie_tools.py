"""`weir bookie inspect|verify|rebuild-index`: looks into the folder of a stopped bookie."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from weir.bookie.tools import Inspection, Verification, inspect, rebuild_index, verify
from weir.runtime.real import run

_folder = click.argument("folder", type=click.Path(exists=True, file_okay=False))
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


@click.command(
    "inspect",
    epilog="""
\b
Examples:
  weir bookie inspect /var/lib/weir/b1
  weir bookie inspect ./b1 --json
""",
)
@_folder
@_as_json
def inspect_command(folder: str, as_json: bool) -> None:
    """Show the ledgers, sizes and files in FOLDER."""
    found = run(lambda runtime: inspect(runtime, _absolute(folder)))
    if as_json:
        click.echo(json.dumps(_inspection(found)))
        return
    console = Console()
    console.print(f"bookie [bold]{found.bookie_id}[/], instance {found.instance}")
    ledgers = _table(
        "ledger", "logged", "in journal", "bytes", "last entry", "last confirmed", "fenced", title="Ledgers"
    )
    for ledger in found.ledgers:
        ledgers.add_row(
            str(ledger.ledger_id),
            str(ledger.logged_entries),
            str(ledger.journaled_entries),
            decimal(ledger.logged_bytes),
            str(ledger.last_entry),
            str(ledger.last_confirmed),
            "yes" if ledger.fenced else "",
        )
    files = _table("file", "size", "note", title="Files")
    for file in found.files:
        files.add_row(file.path, decimal(file.size), file.note)
    console.print(ledgers, files)
    for problem in found.problems:
        console.print(f"[red]problem[/] {problem}")
    if found.problems:
        console.print("run [bold]weir bookie verify[/] for all of it")


@click.command(
    "verify",
    epilog="""
\b
Examples:
  weir bookie verify /var/lib/weir/b1
  weir bookie verify ./b1 --json

Ends with 1 if anything is damaged. A damaged entry is read from another replica; a damaged index is made anew by
`weir bookie rebuild-index` or at the next start.
""",
)
@_folder
@_as_json
@click.pass_context
def verify_command(context: click.Context, folder: str, as_json: bool) -> None:
    """Check every checksum in FOLDER."""
    with _progress("verifying", hidden=as_json) as moved:
        result = run(lambda runtime: verify(runtime, _absolute(folder), moved))
    if as_json:
        click.echo(json.dumps({**asdict(result), "damages": [asdict(damage) for damage in result.damages]}))
    else:
        _show_verification(result)
    if result.damages:
        context.exit(1)


@click.command(
    "rebuild-index",
    epilog="""
\b
Example:
  weir bookie rebuild-index /var/lib/weir/b1
""",
)
@_folder
def rebuild_command(folder: str) -> None:
    """Make the index of every entry log in FOLDER anew, from the entries themselves."""
    with _progress("rebuilding") as moved:
        rows = run(lambda runtime: rebuild_index(runtime, _absolute(folder), moved))
    click.echo(f"{sum(rows.values())} entries in {len(rows)} entry logs are indexed anew")


def _absolute(folder: str) -> str:
    return str(Path(folder).absolute())


def _inspection(found: Inspection) -> dict[str, object]:
    return {
        "bookie": found.bookie_id,
        "instance": found.instance,
        "ledgers": [asdict(ledger) for ledger in found.ledgers],
        "files": [asdict(file) for file in found.files],
        "problems": found.problems,
    }


def _show_verification(result: Verification) -> None:
    console = Console()
    console.print(
        f"{result.journal_records} journal records, {result.entries} entries in {result.logs} entry logs, "
        f"{decimal(result.bytes_read)} read"
    )
    if not result.damages:
        console.print("[green]no damage found[/]")
        return
    damages = _table("file", "offset", "what is wrong", title="Damage")
    for damage in result.damages:
        damages.add_row(damage.path, str(damage.offset), damage.what)
    console.print(damages)


def _table(*columns: str, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        numeric = column in (
            "ledger",
            "logged",
            "in journal",
            "bytes",
            "last entry",
            "last confirmed",
            "size",
            "offset",
        )
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    return table


@contextmanager
def _progress(what: str, *, hidden: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A progress bar in bytes, on the error stream, for as long as the block runs."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=hidden, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
