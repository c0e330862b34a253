"""How commands show what they found in a data folder, and how far they are."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from weir.bookie.survey import FileDamage
from weir.cli.output import Format, Output, print_table
from weir.datafolder.report import lost_messages
from weir.datafolder.survey import FolderSurvey, LostRange

#: Places of one kind that are shown one by one; JSON has all.
_SHOWN = 50


#: Of all that was found, for CSV.
_FOUND = ("kind", "file", "byte", "topic", "partition", "of", "first offset", "end offset", "messages")
_FOUND_ALSO = ("ledger", "first entry", "last entry", "cause")


def show_survey(report: FolderSurvey, out: Output) -> None:
    """What was read, each damaged place, and what is lost by topic and offsets; as CSV one row for each."""
    if out.format is Format.CSV:
        out.table((*_FOUND, *_FOUND_ALSO), _found_rows(report))
        return
    read = report.bookie
    click.echo(
        f"{report.folder}: {len(report.chart.chains)} topics and partitions, "
        f"{len(report.meta.items)} keys of metadata, "
        f"{read.entries} entries in {read.logs} entry logs and {read.journal_records} journal records, "
        f"{decimal(read.bytes_read)} read"
    )
    show_damages(report.damages)
    if report.losses:
        print_losses("Lost", report.losses)
        click.echo(f"lost: {lost_messages(report)} messages at the most, where they can be counted")
    elif report.damages:
        click.echo("no message is lost")
    if report.meta.lost_changes:
        click.echo(f"lost: {report.meta.lost_changes} changes of the metadata (topics, positions, policies)")
    if report.known:
        print_losses("Lost before, and known", report.known)


def _found_rows(report: FolderSurvey) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [
        ("damage", each.path, each.offset, *(None,) * 9, each.what) for each in report.damages
    ]
    for kind, losses in (("lost", report.losses), ("lost before", report.known)):
        rows += [
            (
                kind,
                None,
                None,
                lost.topic,
                lost.partition,
                lost.what,
                lost.first_offset if lost.first_offset >= 0 else None,
                lost.end_offset if lost.end_offset >= 0 else None,
                lost.messages,
                lost.ledger_id,
                lost.first_entry,
                lost.last_entry,
                lost.cause,
            )
            for lost in losses
        ]
    return rows


def show_damages(damages: Sequence[FileDamage]) -> None:
    if damages:
        rows = [(each.path, each.offset, each.what) for each in damages[:_SHOWN]]
        print_table(("file", "byte", "what is wrong"), rows, title="Damage")
        _more(len(damages))


def print_losses(title: str, losses: Sequence[LostRange]) -> None:
    rows = [
        (lost.topic, lost.partition, lost.what, offsets(lost), lost.messages, entries(lost), lost.cause)
        for lost in losses[:_SHOWN]
    ]
    columns = ("topic", "partition", "of", "offsets", "messages", "ledger and entries", "cause")
    print_table(columns, rows, title=title)
    _more(len(losses))


def offsets(lost: LostRange) -> str:
    if lost.first_offset < 0:
        return ""
    if lost.end_offset < 0:
        return f"{lost.first_offset} and on"
    return f"{lost.first_offset} to {lost.end_offset - 1}"


def entries(lost: LostRange) -> str:
    last = "" if lost.last_entry == lost.first_entry else f" to {lost.last_entry}"
    return f"{lost.ledger_id}: {lost.first_entry}{last}"


def _more(count: int) -> None:
    if count > _SHOWN:
        click.echo(f"... and {count - _SHOWN} more: --json lists them all")


@contextmanager
def byte_progress(what: str, *, hidden: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A progress bar in bytes, on the error stream, for as long as the block runs."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=hidden or not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
