"""`weir verify` and `weir salvage`: what is damaged in a data folder, and what can be saved of it."""

from pathlib import Path

import click

from weir.cli.cluster.bookie_tools import verify_command as verify_bookie_command
from weir.cli.operating.folder_views import byte_progress, show_survey
from weir.cli.output import Format, Output, print_json
from weir.cli.remote import output_options
from weir.datafolder.report import lost_messages, report_fields
from weir.datafolder.salvage import REPORT_NAME, salvage
from weir.datafolder.verify import verify_folder
from weir.runtime.real import run

#: Exit code when something is damaged.
DAMAGED = 1

_folder = click.argument("data", type=click.Path(file_okay=False))


@click.command(
    epilog="""
\b
Examples:
  weir verify weir-data                  stop weir up first
  weir verify /var/lib/weir --json
  weir verify /backups/monday            a copy that weir backup made

Ends with 0 if everything is whole, and with 1 if anything is damaged. The folder of one bookie can be named too.
"""
)
@_folder
@output_options
def verify(data: str, out: Output) -> int:
    """Check every checksum in the data folder DATA, and say which messages are lost, by topic and offsets."""
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
            click.echo("everything is whole")
        else:
            for command in report.remedies:
                click.echo(f"to mend the bookie's cookie: {command}")
            click.echo(f"to save what can be read: weir salvage {data} --into NEW")
    return 0 if report.is_whole else DAMAGED


@click.command(
    epilog="""
\b
Examples:
  weir salvage weir-data --into weir-saved
  weir up --data weir-saved
  weir salvage /var/lib/weir --into /mnt/new/weir --json > report.json

DATA is only read. Topics keep their names and offsets, subscriptions their positions; where messages are lost,
consumers go on behind them, and `weir topics stats` names the offsets. The report stays in NEW as salvage.json.
"""
)
@_folder
@click.option(
    "--into", required=True, metavar="NEW", type=click.Path(file_okay=False), help="A new, empty folder."
)
@output_options
def salvage_command(data: str, into: str, out: Output) -> None:
    """Save everything that can be read in the stopped data folder DATA into a new one, and list what is lost."""
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
