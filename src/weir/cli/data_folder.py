"""`weir backup`, `restore`, `verify` and `salvage`: copy, check and repair data folders and clusters.

A backup copies a stopped or running folder, or a running cluster. Verify reports damage, and salvage saves
readable data into a new folder.
"""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressProgress

from weir.bookie.survey import FileDamage
from weir.cli.bookie import verify_command as verify_bookie_command
from weir.cli.ledger import ledger_session
from weir.cli.output import Format, Output, done, print_json, print_table
from weir.cli.remote import output_options
from weir.datafolder.archive import backup_to_file, check_file, is_archive, restore_from_file
from weir.datafolder.backup import BackupReport, check_backup
from weir.datafolder.backup import backup as make_backup
from weir.datafolder.backup import restore as put_back
from weir.datafolder.cluster_backup import ClusterCopy, copy_cluster, restore_cluster
from weir.datafolder.salvage import REPORT_NAME, salvage
from weir.datafolder.survey import FolderSurvey, LostRange, lost_messages, report_fields, verify_folder
from weir.model.errors import ConfigError
from weir.runtime.interfaces import Runtime
from weir.runtime.real import run

#: The most damaged places of one kind that the text output lists; JSON lists all.
_SHOWN = 50


#: Columns of the CSV output, for all kinds of findings.
_FOUND = ("kind", "file", "byte", "topic", "partition", "of", "first offset", "end offset", "messages")
_FOUND_ALSO = ("ledger", "first entry", "last entry", "cause")


def show_survey(report: FolderSurvey, out: Output) -> None:
    """Print totals, damaged places, and lost messages by topic and offsets; as CSV, one row for each."""
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
        click.echo(f"lost: {lost_messages(report)} messages at most, as far as they can be counted")
    elif report.damages:
        click.echo("no message is lost")
    if report.meta.lost_changes:
        click.echo(f"lost: {report.meta.lost_changes} metadata changes (topics, positions, policies)")
    if report.known:
        print_losses("Known earlier losses", report.known)


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
        print_table(("file", "byte", "problem"), rows, title="Damage")
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
        return f"{lost.first_offset} onwards"
    return f"{lost.first_offset} to {lost.end_offset - 1}"


def entries(lost: LostRange) -> str:
    last = "" if lost.last_entry == lost.first_entry else f" to {lost.last_entry}"
    return f"{lost.ledger_id}: {lost.first_entry}{last}"


def _more(count: int) -> None:
    if count > _SHOWN:
        click.echo(f"... and {count - _SHOWN} more: --json lists them all")


@contextmanager
def byte_progress(what: str, *, hidden: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar in bytes on standard error while the block runs."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with ProgressProgress(
        *columns, console=console, disable=hidden or not console.is_terminal, transient=True
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


Progress = Callable[[int, int], None]


class Place(NamedTuple):
    """The metadata URL of a cluster, and the secret of its nodes if a file states it."""

    meta: str
    secret: str = ""


def cluster_at(folder: str | None, meta_url: str | None) -> Place | None:
    """The cluster named by its metadata URL or by the folder of `weir cluster up`; None if neither names one."""
    if meta_url is not None:
        return Place(meta_url)
    plan = None if folder is None else Path(folder) / "cluster.json"
    if plan is None or not plan.exists():
        return None
    try:
        ports = [int(member["client_port"]) for member in json.loads(plan.read_text())["etcd"]]
    except (OSError, ValueError, KeyError, TypeError) as bad:
        raise ConfigError(f"{plan} cannot be read: {bad}", hint="name the metadata: --meta etcd://...") from None
    if not ports:
        raise ConfigError(
            f"the cluster in {folder} keeps its metadata elsewhere", hint="name it: --meta etcd://..."
        )
    meta = "etcd://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    return Place(meta, f"file:{plan.with_name('secret').absolute()}")


def new_place(to: str) -> Path:
    """A temporary path for the copy under construction; ConfigError if the destination exists."""
    target = Path(to)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{to} exists", hint="name a new folder or file for each copy of a cluster")
    aside = target.with_name(f"{target.name}.partial")
    if aside.exists():
        raise ConfigError(f"{aside} exists: another backup was interrupted, or still runs", hint="remove it first")
    return aside


async def backup_cluster(
    runtime: Runtime, place: Place, to: str, progress: Progress
) -> tuple[BackupReport, ClusterCopy]:
    """Copy a consistent state of the cluster into `to`, a new folder or file, by way of a temporary one."""
    aside = new_place(to)
    try:
        async with ledger_session(runtime, place.meta, place.secret) as client:
            copied = await copy_cluster(runtime, client, str(aside), lambda done: progress(done, 0))
        make = backup_to_file if is_archive(to) else make_backup
        report = await make(runtime, str(aside), to, progress)
    finally:
        await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)
    return report, copied


async def restore_to_cluster(runtime: Runtime, place: Place, copy: str, copies: int, progress: Progress) -> int:
    """Restore the copy into the cluster; return the number of ledgers."""
    async with ledger_session(runtime, place.meta, place.secret) as client:
        if not is_archive(copy):
            return await restore_cluster(runtime, client, copy, copies, progress)
        aside = Path(copy).with_name(f"{Path(copy).name}.partial")
        try:
            await restore_from_file(runtime, copy, str(aside), progress)
            return await restore_cluster(runtime, client, str(aside), copies, progress)
        finally:
            await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)


#: Exit code after damage.
DAMAGED = 1

_folder = click.argument("data", type=click.Path(file_okay=False))


@click.command(
    epilog="""
\b
Examples:
  weir verify weir-data                  stop weir up first
  weir verify /var/lib/weir --json
  weir verify /backups/monday            a backup

Exits with 0 if everything is intact, and with 1 if anything is damaged. DATA can also be the folder of one bookie.
"""
)
@_folder
@output_options
def verify(data: str, out: Output) -> int:
    """Verify every checksum in the data folder DATA, and list lost messages by topic and offsets."""
    path = _absolute(data)
    if Path(path, "cookie").is_file():
        click.get_current_context().invoke(verify_bookie_command, folder=path, output_format=out.format.value)
        return 0
    with byte_progress("verifying", hidden=out.format is not Format.TABLE) as moved:
        report = run(lambda runtime: verify_folder(runtime, path, moved))
    if out.json:
        print_json(report_fields(report))
    else:
        show_survey(report, out)
        if out.format is Format.CSV:
            pass
        elif report.is_whole:
            click.echo("everything is intact")
        else:
            for command in report.remedies:
                click.echo(f"to repair the bookie's cookie: {command}")
            click.echo(f"to save readable data: weir salvage {data} --into NEW")
    return 0 if report.is_whole else DAMAGED


@click.command(
    epilog="""
\b
Examples:
  weir salvage weir-data --into weir-saved
  weir up --data weir-saved
  weir salvage /var/lib/weir --into /mnt/new/weir --json > report.json

Salvage only reads DATA. Topics keep their names and offsets, subscriptions their positions. Consumers skip lost
messages; `weir topics stats` names their offsets. NEW keeps the report as salvage.json.
"""
)
@_folder
@click.option(
    "--into", required=True, metavar="NEW", type=click.Path(file_okay=False), help="A new, empty folder."
)
@output_options
def salvage_command(data: str, into: str, out: Output) -> None:
    """Save all readable data of the stopped data folder DATA into a new one, and list the losses."""
    with byte_progress("saving", hidden=out.format is not Format.TABLE) as moved:
        report = run(lambda runtime: salvage(runtime, _absolute(data), _absolute(into), moved))
    if out.json:
        print_json(report_fields(report))
        return
    show_survey(report, out)
    if out.format is Format.CSV:
        return
    for name in report.adopted:
        click.echo(f"adopted: {name}")
    for one in report.positions:
        click.echo(
            f"moved: subscription {one.subscription} of {one.topic} was at offset {one.offset}; "
            f"the topic now ends at {one.end_offset}, and it continues there"
        )
    if report.is_whole:
        click.echo(f"nothing was damaged; {into} is a copy")
    else:
        click.echo(
            f"saved into {into}, with at most {lost_messages(report)} messages lost; see {into}/{REPORT_NAME}"
        )
    click.echo(f"start it with: weir up --data {into}")


def _absolute(folder: str) -> str:
    return str(Path(folder).absolute())


_as_json = output_options


@click.command(
    epilog="""
\b
Examples:
  weir backup weir-data --to /backups/weir       while weir up runs, or after it
  weir backup weir-data --to /backups/weir       again: copies only changes
  weir backup weir-data --to monday.tar.gz       one new file; .tar is uncompressed and faster
  weir backup --check /backups/weir              verify the checksums of the copy
  weir backup --check monday.tar.gz
  weir restore /backups/weir --data weir-again
  weir backup weir-cluster --to /backups/monday  the folder of weir cluster up, while it runs
  weir backup --meta etcd://etcd-1:2379 --to /backups/monday   any cluster, while it runs

A cluster backup connects to the metadata and the bookies; set WEIR_CLUSTER_SECRET=file:... if nodes have a secret.
To back up a data folder, run the command on its machine, as a user with write access: it signals a running Weir
by a file in the folder.
"""
)
@click.argument("data", type=click.Path(), required=False)
@click.option("--meta", "meta_url", metavar="URL", help="Instead of DATA: the metadata of a running cluster.")
@click.option(
    "--to",
    "to",
    metavar="DIR|FILE",
    type=click.Path(),
    help="Where the copy goes: a folder, or a new file that ends with .tar, .tar.gz or .tgz.",
)
@click.option(
    "--check", is_flag=True, help="DATA is a copy: compare each file with its checksum, and copy nothing."
)
@_as_json
def backup(data: str | None, meta_url: str | None, to: str | None, check: bool, as_json: bool) -> None:
    """Copy the data folder DATA, running or stopped, or a running cluster, including every message acknowledged
    before."""
    if (data is None) == (meta_url is None):
        raise click.UsageError("name what to copy: the folder DATA, or a cluster by --meta")
    if check == (to is not None):
        raise click.UsageError("name a folder or a file for the copy: --to DIR, --to X.tar.gz (or --check a copy)")
    place = None if check else cluster_at(data, meta_url)
    if place is not None and to is not None:
        _backup_cluster(place, to, as_json=as_json)
        return
    if data is None:
        raise click.UsageError("--check is for a copy: name it")
    source = _absolute(data)
    with byte_progress("checking" if check else "copying", hidden=as_json) as moved:
        if to is None:
            check_it = check_file if is_archive(source) else check_backup
            report = run(lambda runtime: check_it(runtime, source, moved))
        else:
            target = _absolute(to)
            make = backup_to_file if is_archive(target) else make_backup
            report = run(lambda runtime: make(runtime, source, target, moved))
    if as_json:
        print_json(_fields(report))
    elif check:
        click.echo(
            f"{data}: {report.files} files, {decimal(report.bytes)}, unchanged since the copy at {_when(report)}"
        )
    else:
        how = "while it ran" if report.running else "stopped"
        click.echo(
            f"{data} copied to {to} ({how}): {report.files} files, {decimal(report.bytes)}, "
            f"{decimal(report.copied_bytes)} of them new; restore with: weir restore {to} --data NEW"
        )


def _backup_cluster(place: Place, to: str, *, as_json: bool) -> None:
    target = _absolute(to)
    with byte_progress("copying", hidden=as_json) as moved:
        report, copied = run(lambda runtime: backup_cluster(runtime, place, target, moved))
    if as_json:
        print_json(
            {
                **_fields(report),
                "ledgers": copied.ledgers,
                "heldMs": round(copied.held_s * 1000),
                "lost": copied.lost,
            }
        )
        return
    click.echo(
        f"cluster copied to {to}: {copied.ledgers} ledgers, {decimal(report.bytes)}; writes paused for"
        f" {copied.held_s * 1000:.0f} ms; restore with: weir restore {to} --meta URL, or --data NEW for one node"
    )
    if copied.lost:
        click.echo(f"warning: {copied.lost} entries are damaged on all bookies and in the copy", err=True)


@click.command(
    epilog="""
\b
Examples:
  weir restore /backups/weir --data weir-data
  weir restore monday.tar.gz --data weir-data
  weir up --data weir-data
  weir restore /backups/monday --meta etcd://etcd-1:2379     into a new cluster with bookies but no brokers yet
  weir restore /backups/monday --data weir-cluster           the same, for weir cluster up --data ... --brokers 0
"""
)
@click.argument("copy", metavar="FROM", type=click.Path())
@click.option("--data", metavar="NEW", type=click.Path(file_okay=False), help="A new, empty folder.")
@click.option(
    "--meta", "meta_url", metavar="URL", help="Instead of NEW: the metadata of a new cluster without brokers."
)
@click.option(
    "--copies",
    type=click.IntRange(1, 9),
    default=2,
    show_default=True,
    help="In a cluster: replicas of each ledger.",
)
@_as_json
def restore(copy: str, data: str | None, meta_url: str | None, copies: int, as_json: bool) -> None:
    """Restore the backup FROM as the data folder NEW, or into a new cluster. Restore verifies the checksum of each
    file."""
    if (data is None) == (meta_url is None):
        raise click.UsageError("say where to: --data NEW, or a cluster by --meta")
    place = cluster_at(data, meta_url)
    source = _absolute(copy)
    if place is not None:
        with byte_progress("restoring", hidden=as_json) as moved:
            ledgers = run(lambda runtime: restore_to_cluster(runtime, place, source, copies, moved))
        done(f"{ledgers} ledgers restored: start the brokers of the cluster now", as_json=as_json, ledgers=ledgers)
        return
    assert data is not None
    target = _absolute(data)
    with byte_progress("restoring", hidden=as_json) as moved:
        back = restore_from_file if is_archive(source) else put_back
        report = run(lambda runtime: back(runtime, source, target, moved))
    if as_json:
        print_json(_fields(report))
    else:
        click.echo(
            f"{data} restored to the state of {_when(report)}: {report.files} files, {decimal(report.bytes)}; "
            f"start it with: weir up --data {data}"
        )


def _fields(report: BackupReport) -> dict[str, object]:
    return {
        "folder": report.folder,
        "madeMs": report.made_ms,
        "files": report.files,
        "bytes": report.bytes,
        "copiedBytes": report.copied_bytes,
        "running": report.running,
    }


def _when(report: BackupReport) -> str:
    return datetime.fromtimestamp(report.made_ms / 1000, UTC).isoformat(timespec="seconds")
