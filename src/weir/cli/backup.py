"""`weir backup` and `weir restore`: a whole data folder copied, while it runs or not, and put back."""

from datetime import UTC, datetime
from pathlib import Path

import click
from rich.filesize import decimal

from weir.cli.folder_views import byte_progress
from weir.cli.output import print_json
from weir.cli.remote import output_options
from weir.datafolder.archive import is_archive
from weir.datafolder.backup import BackupReport, check_backup
from weir.datafolder.backup import backup as make_backup
from weir.datafolder.backup import restore as put_back
from weir.datafolder.one_file import backup_to_file, check_file, restore_from_file
from weir.runtime.real import run

_as_json = output_options


@click.command(
    epilog="""
\b
Examples:
  weir backup weir-data --to /backups/weir       while weir up runs, or after it
  weir backup weir-data --to /backups/weir       again: only what is new is copied
  weir backup weir-data --to monday.tar.gz       one new file; .tar is not squeezed, and quicker
  weir backup --check /backups/weir              is every file still what was copied?
  weir backup --check monday.tar.gz
  weir restore /backups/weir --data weir-again

Run it on the machine of the folder, as a user who may write there: a running Weir is asked by a file in it.
"""
)
@click.argument("data", type=click.Path())
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
def backup(data: str, to: str | None, check: bool, as_json: bool) -> None:
    """Copy the data folder DATA, running or stopped, with everything that was acknowledged before."""
    if check == (to is not None):
        raise click.UsageError("name a folder or a file for the copy: --to DIR, --to X.tar.gz (or --check a copy)")
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
            f"{data}: {report.files} files, {decimal(report.bytes)}, all as they were copied at {_when(report)}"
        )
    else:
        how = "while it ran" if report.running else "stopped"
        click.echo(
            f"{data} is copied to {to} ({how}): {report.files} files, {decimal(report.bytes)}, "
            f"of which {decimal(report.copied_bytes)} are new; put back with: weir restore {to} --data NEW"
        )


@click.command(
    epilog="""
\b
Examples:
  weir restore /backups/weir --data weir-data
  weir restore monday.tar.gz --data weir-data
  weir up --data weir-data
"""
)
@click.argument("copy", metavar="FROM", type=click.Path())
@click.option(
    "--data", required=True, metavar="NEW", type=click.Path(file_okay=False), help="A new, empty folder."
)
@_as_json
def restore(copy: str, data: str, as_json: bool) -> None:
    """Put the copy FROM, made by weir backup, back as the data folder NEW; each file is checked on the way."""
    source, target = _absolute(copy), _absolute(data)
    with byte_progress("restoring", hidden=as_json) as moved:
        back = restore_from_file if is_archive(source) else put_back
        report = run(lambda runtime: back(runtime, source, target, moved))
    if as_json:
        print_json(_fields(report))
    else:
        click.echo(
            f"{data} is as it was at {_when(report)}: {report.files} files, {decimal(report.bytes)}; "
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


def _absolute(folder: str) -> str:
    return str(Path(folder).absolute())
