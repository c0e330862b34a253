"""`weir sql server`: the warm Spark that `weir sql` talks to."""

from datetime import datetime
from typing import TYPE_CHECKING

import click

from weir.cli.examples import examples
from weir.cli.spark_side import need_spark

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


@server.command(epilog=examples("weir sql server status", "weir sql server status --json"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def status(*, as_json: bool) -> None:
    """Show which servers run: for whom, since when, and until when."""
    found = _found()
    if as_json:
        from msgspec import json

        click.echo(json.format(json.encode(found), indent=2).decode())
        return
    if not found:
        click.echo("no server of weir sql runs; the next weir sql starts one")
    for one in found:
        since = f"{datetime.fromtimestamp(one.since_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S}"
        spark = "Spark runs" if one.spark else "Spark is not started yet"
        used = f"{one.clients - 1} clients" if one.clients > 1 else f"unused for {one.idle_s:.0f} s"
        click.echo(
            f"process {one.pid}, Weir {one.version}, since {since}: {spark}, {one.statements} requests, {used}"
        )
        click.echo(f"  it ends when unused for {one.ends_after_s:.0f} s; its log is {one.log}")


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
