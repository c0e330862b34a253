"""`weir sql`: topics as tables, at a prompt or from a script."""

import sys
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weir.cli.output import print_json
from weir.cli.remote import Remote, remote_options
from weir.cli.spark_side import RunnerStarter, need_spark, place_of, quiet_session
from weir.cli.sql_views import print_live, print_rows
from weir.model.errors import ConfigError, WeirError

if TYPE_CHECKING:
    from weir.spark.sql.console import Console
    from weir.spark.sql.statements import SelectStream

_PROMPT_ROWS = 1_000


@click.command(
    epilog="""
\b
Examples:
  weir sql                                                  a prompt
  weir sql -e 'SELECT * FROM orders LIMIT 10'
  weir sql -e 'SELECT STREAM * FROM orders' --limit 5       rows as they come
  weir sql -e 'CREATE STREAM big AS SELECT * FROM orders WHERE amount > 100'
  weir sql -f report.sql --json
"""
)
@click.option("-e", "--execute", "texts", multiple=True, metavar="SQL", help="Do this. May be repeated.")
@click.option("-f", "--file", "file", metavar="FILE", help="Do what is in a file; - reads standard input.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Print so many rows of a result at the most."
)
@click.option(
    "--from",
    "start",
    type=click.Choice(["latest", "earliest"]),
    default="latest",
    show_default=True,
    help="Where SELECT STREAM begins.",
)
@click.option("--no-runner", is_flag=True, help="Start no runner for streams; weir streams run does it elsewhere.")
@click.option("--checkpoints", metavar="FOLDER", help="For a runner started here; by default beside the data.")
@click.option("--kafka", metavar="HOST:PORT", help="The Kafka listener, if the server's own word does not do.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs queries.")
@remote_options
def sql(
    *,
    texts: tuple[str, ...],
    file: str | None,
    limit: int | None,
    start: str,
    no_runner: bool,
    checkpoints: str | None,
    kafka: str | None,
    master: str,
    remote: Remote,
    as_json: bool,
) -> None:
    """Query topics, and define streams, with SQL on Spark. Statements end with semicolons."""
    need_spark()
    from weir.spark.sql.console import Console

    given = [*texts, *([_read(file)] if file is not None else [])]
    place = place_of(remote, kafka)
    starter = RunnerStarter(remote, place.access, kafka, checkpoints)
    asked = not given and sys.stdin.isatty()
    console = Console(
        lambda: quiet_session("weir-sql", master=master),
        place,
        limit=limit or (_PROMPT_ROWS if asked else None),
        start=start,
        see_runner=(lambda: False) if no_runner else starter.see,
    )
    if asked:
        _prompt(console, as_json=as_json)
        return
    for text in given or [sys.stdin.read()]:
        _run(console, text, as_json=as_json)


def _run(console: "Console", text: str, *, as_json: bool) -> None:
    """All statements of a text; the first that fails ends it."""
    from weir.spark.sql.console import Rows
    from weir.spark.sql.statements import SelectStream, parse

    for statement in parse(text):
        if isinstance(statement, SelectStream):
            _live(console, statement, as_json=as_json)
            continue
        result = console.do(statement)
        if isinstance(result, Rows):
            print_rows(result.columns, result.rows, as_json=as_json)
            if result.more and not as_json:
                click.echo(f"... and more; give --limit, or LIMIT, to see more than {len(result.rows)} rows")
        elif as_json:
            print_json({"done": result.what, **result.fields})
        else:
            click.echo(result.what)


def _live(console: "Console", statement: "SelectStream", *, as_json: bool) -> None:
    """Rows as they come, until Ctrl-C."""
    first = True
    try:
        with closing(console.live(statement)) as rows:
            for some in rows:
                print_live(some.columns, some.rows, first=first, as_json=as_json)
                sys.stdout.flush()
                first = False
    except KeyboardInterrupt:
        click.echo("", err=True)


def _prompt(console: "Console", *, as_json: bool) -> None:
    from weir.cli.sql_prompt import statements

    known: list[str] = []

    def topics() -> Iterable[str]:
        return known

    click.echo("SQL on topics; statements end with ;  SHOW TABLES; lists them, exit or Ctrl-D leaves.")
    with suppress(WeirError):
        known[:] = console.tables.names()
    for text in statements(topics):
        try:
            _run(console, text, as_json=as_json)
            known[:] = console.tables.names()
        except WeirError as wrong:
            click.secho(str(wrong), fg="red", err=True)
        except KeyboardInterrupt:
            click.echo("stopped", err=True)


def _read(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError(f"cannot read {file}: {failure}", hint="check --file") from None
