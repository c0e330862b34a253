"""`weir bookie`: run a storage node, and inspect, verify or repair the files of a stopped one."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from weir.bookie.inspection import Inspection, Verification, inspect, rebuild_index, verify
from weir.cli.command import LazyGroup
from weir.cli.output import Bytes, Column, Format, Output
from weir.cli.remote import output_options
from weir.runtime.real import run


@click.group(
    cls=LazyGroup,
    lazy={
        "inspect": "weir.cli.bookie:inspect_command",
        "rebuild-index": "weir.cli.bookie:rebuild_command",
        "serve": "weir.server.commands.nodes:serve",
        "verify": "weir.cli.bookie:verify_command",
    },
)
def bookie() -> None:
    """Run a storage node, or inspect its files while it is stopped."""


_folder = click.argument("folder", type=click.Path(exists=True, file_okay=False))


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
@output_options
def inspect_command(folder: str, out: Output) -> None:
    """Show the ledgers, sizes and files in FOLDER."""
    found = run(lambda runtime: inspect(runtime, _absolute(folder)))
    if out.json:
        click.echo(json.dumps(_inspection(found)))
        return
    if out.format is not Format.CSV:
        click.echo(f"bookie {found.bookie_id}, instance {found.instance}")
    columns = ("ledger", "logged", "in journal", "size", "last entry", "last confirmed", "fenced")
    rows = [
        (
            one.ledger_id,
            one.logged_entries,
            one.journaled_entries,
            Bytes(one.logged_bytes),
            one.last_entry,
            one.last_confirmed,
            one.fenced,
        )
        for one in found.ledgers
    ]
    out.table(columns, rows, title="Ledgers")
    out.gap()
    files = [(file.path, Bytes(file.size), file.note) for file in found.files]
    out.table((Column("file", cut="start"), "size", Column("note", cut="end")), files, title="Files")
    for problem in found.problems:
        click.echo(f"problem: {problem}", err=True)
    if found.problems:
        click.echo("run weir bookie verify for the full report", err=True)


@click.command(
    "verify",
    epilog="""
\b
Examples:
  weir bookie verify /var/lib/weir/b1
  weir bookie verify ./b1 --json

Exits with 1 if anything is damaged. The cluster reads a damaged entry from another replica. To rebuild a damaged
index, run `weir bookie rebuild-index` or restart the bookie.
""",
)
@_folder
@output_options
@click.pass_context
def verify_command(context: click.Context, folder: str, out: Output) -> None:
    """Check every checksum in FOLDER."""
    with _progress("verifying", hidden=out.format is not Format.TABLE) as moved:
        result = run(lambda runtime: verify(runtime, _absolute(folder), moved))
    if out.json:
        click.echo(json.dumps({**asdict(result), "damages": [asdict(damage) for damage in result.damages]}))
    else:
        _show_verification(result, out)
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
    """Rebuild the index of every entry log in FOLDER from the entries themselves."""
    with _progress("rebuilding") as moved:
        rows = run(lambda runtime: rebuild_index(runtime, _absolute(folder), moved))
    click.echo(f"{sum(rows.values())} entries in {len(rows)} entry logs indexed")


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


def _show_verification(result: Verification, out: Output) -> None:
    csv = out.format is Format.CSV
    if not csv:
        click.echo(
            f"{result.journal_records} journal records, {result.entries} entries in {result.logs} entry logs, "
            f"{decimal(result.bytes_read)} read"
        )
    if result.damages or csv:
        columns = (Column("file", cut="start"), "offset", Column("problem", cut="end"))
        out.table(columns, [(one.path, one.offset, one.what) for one in result.damages], title="Damage")
    else:
        click.echo("no damage found")


@contextmanager
def _progress(what: str, *, hidden: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar in bytes on standard error while the block runs."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=hidden, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
