"""`weir backup` and `weir restore`: a whole data folder copied, while it runs or not, and put back."""

from datetime import UTC, datetime
from pathlib import Path

import click
from rich.filesize import decimal

from weir.cli.cluster.backup import Place, backup_cluster, cluster_at, restore_to_cluster
from weir.cli.operating.folder_views import byte_progress
from weir.cli.output import done, print_json
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
  weir backup weir-cluster --to /backups/monday  the folder of weir cluster up, while it runs
  weir backup --meta etcd://etcd-1:2379 --to /backups/monday   any cluster, while it runs

Of a cluster it needs the metadata and the bookies, and WEIR_CLUSTER_SECRET=file:... where nodes have a secret.
Else run it on the machine of the folder, as a user who may write there: a running Weir is asked by a file in it.
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
    """Copy the data folder DATA, running or stopped, or a running cluster, with everything that was acknowledged
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
            f"{data}: {report.files} files, {decimal(report.bytes)}, all as they were copied at {_when(report)}"
        )
    else:
        how = "while it ran" if report.running else "stopped"
        click.echo(
            f"{data} is copied to {to} ({how}): {report.files} files, {decimal(report.bytes)}, "
            f"of which {decimal(report.copied_bytes)} are new; put back with: weir restore {to} --data NEW"
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
        f"the cluster is copied to {to}: {copied.ledgers} ledgers, {decimal(report.bytes)}; writes waited"
        f" {copied.held_s * 1000:.0f} ms; put back with: weir restore {to} --meta URL, or --data NEW for one node"
    )
    if copied.lost:
        click.echo(f"warning: {copied.lost} entries are damaged on all bookies, and are so in the copy", err=True)


@click.command(
    epilog="""
\b
Examples:
  weir restore /backups/weir --data weir-data
  weir restore monday.tar.gz --data weir-data
  weir up --data weir-data
  weir restore /backups/monday --meta etcd://etcd-1:2379     into a new cluster: bookies run, brokers not yet
  weir restore /backups/monday --data weir-cluster           the same: weir cluster up --data ... --brokers 0 runs
"""
)
@click.argument("copy", metavar="FROM", type=click.Path())
@click.option("--data", metavar="NEW", type=click.Path(file_okay=False), help="A new, empty folder.")
@click.option("--meta", "meta_url", metavar="URL", help="Instead: the metadata of a new cluster without brokers.")
@click.option(
    "--copies", type=click.IntRange(1, 9), default=2, show_default=True, help="In a cluster: on so many bookies."
)
@_as_json
def restore(copy: str, data: str | None, meta_url: str | None, copies: int, as_json: bool) -> None:
    """Put the copy FROM, made by weir backup, back as the data folder NEW, or into a new cluster; each file is
    checked on the way."""
    if (data is None) == (meta_url is None):
        raise click.UsageError("say where to: --data NEW, or a cluster by --meta")
    place = cluster_at(data, meta_url)
    source = _absolute(copy)
    if place is not None:
        with byte_progress("restoring", hidden=as_json) as moved:
            ledgers = run(lambda runtime: restore_to_cluster(runtime, place, source, copies, moved))
        done(f"{ledgers} ledgers are in the cluster: start its brokers now", as_json=as_json, ledgers=ledgers)
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
