"""`weir sql server`: the warm Spark that `weir sql` talks to."""

from datetime import datetime
from typing import TYPE_CHECKING

import click

from weir.cli.examples import examples
from weir.cli.output import Column, Format, Output
from weir.cli.remote import output_options
from weir.cli.spark.common import need_spark

if TYPE_CHECKING:
    from weir.spark.serving.messages import Status


@click.group(
    epilog="""
\b
Examples:
  weir sql server status
  weir sql server stop         the next weir sql starts another one
"""
)
def server() -> None:
    """The warm Spark behind weir sql: it starts with the first statement, and ends when unused for 10 minutes."""


@server.command(epilog=examples("weir sql server status", "weir sql server status -o wide"))
@output_options
def status(*, out: Output) -> None:
    """Show which servers run: for whom, since when, and until when."""
    found = _found()
    if out.json:
        from msgspec import json

        click.echo(json.format(json.encode(found), indent=2).decode())
        return
    if not found and out.format is not Format.CSV:
        click.echo("no server of weir sql runs; the next weir sql starts one")
        return
    rows = [
        (
            one.pid,
            one.version,
            f"{datetime.fromtimestamp(one.since_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S}",
            "runs" if one.spark else "not started yet",
            one.statements,
            one.clients - 1,  # whoever asks is one, too
            f"{one.idle_s:.0f} s",
            f"{one.ends_after_s:.0f} s",
            one.log,
        )
        for one in found
    ]
    out.table(
        (
            *("process", "weir", "since", "spark", "requests", "clients", "unused for", "ends when unused for"),
            Column("log", cut="start"),
        ),
        rows,
    )


@server.command(epilog=examples("weir sql server stop"))
def stop() -> None:
    """End them, and what they do."""
    need_spark()
    from weir.spark.serving import link, messages

    count = sum(1 for path in link.servers() if link.ask(path, messages.Stop()) is not None)
    click.echo(f"{count} stopped" if count else "no server of weir sql runs")


def _found() -> "list[Status]":
    need_spark()
    from weir.spark.serving import link, messages

    answers = [link.ask(path, messages.AskStatus()) for path in link.servers()]
    return [one for one in answers if isinstance(one, messages.Status)]
