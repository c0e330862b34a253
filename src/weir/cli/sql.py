"""`weir sql`: topics as tables, at a prompt or from a script."""

import os
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weir.cli.output import print_json
from weir.cli.remote import Remote, remote_options
from weir.cli.spark_side import RunnerStarter, need_spark, place_of, quiet_session, state_folder
from weir.cli.sql_views import print_live, print_rows, print_watched
from weir.model.errors import ConfigError, WeirError

if TYPE_CHECKING:
    from weir.spark.sql.console import Console
    from weir.spark.sql.statements import SelectStream, Statement, Watch

_PROMPT_ROWS = 1_000


@click.command(
    epilog="""
\b
Examples:
  weir sql                                                  a prompt
  weir sql -e 'SELECT * FROM orders LIMIT 10'
  weir sql -e 'SELECT STREAM * FROM orders' --limit 5       rows as they come
  weir sql -e 'SELECT STREAM * FROM orders' --from earliest --json | jq .amount
  weir sql -e 'CREATE STREAM big AS SELECT * FROM orders WHERE amount > 100'
  weir sql -e "INSERT INTO orders (id, amount) VALUES (1, 9.5), (2, 3)"
  weir sql -e 'WATCH STREAMS'                               how far they are, until Ctrl-C
  weir sql -f report.sql --json
  weir sql --url https://weir:8443 --ca ca.pem --token file:me.token

\b
With -e or -f, the first statement that fails ends it, with exit code 1; if one
cannot be understood, none is done. 2: the options are wrong. 130: Ctrl-C.
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
    config = {"spark.sql.warehouse.dir": str(state_folder() / "warehouse")}
    console = Console(
        lambda: quiet_session("weir-sql", master=master, config=config),
        place,
        limit=limit or (_PROMPT_ROWS if asked else None),
        start=start,
        see_runner=(lambda: False) if no_runner else starter.see,
    )
    if asked:
        _prompt(console, as_json=as_json)
        return
    try:
        _run(console, given or [sys.stdin.read()], as_json=as_json)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(console: "Console", texts: list[str], *, as_json: bool) -> None:
    """All statements of all texts; the first that fails ends it. Nothing is done if one cannot be understood."""
    from weir.spark.sql.parsing import parse_script

    placed = [one for text in texts for one in parse_script(text)]
    for one in placed:
        try:
            _do(console, one.statement, as_json=as_json)
        except WeirError as wrong:
            if len(placed) > 1:
                wrong.what = f"statement {one.number}, line {one.line}: {wrong.what}"
            raise


def _do(console: "Console", statement: "Statement", *, as_json: bool) -> None:
    from weir.spark.sql.results import Rows
    from weir.spark.sql.statements import SelectStream, Watch

    if isinstance(statement, SelectStream | Watch):
        _until_interrupted(console, statement, as_json=as_json)
        return
    result = console.do(statement)
    if isinstance(result, Rows):
        print_rows(result.columns, result.rows, as_json=as_json)
        if result.more and not as_json:
            click.echo(f"... and more; give --limit, or LIMIT, to see more than {len(result.rows)} rows")
    elif as_json:
        print_json({"done": result.what, **result.fields})
    else:
        click.echo(result.what)


def _until_interrupted(console: "Console", statement: "SelectStream | Watch", *, as_json: bool) -> None:
    """What goes on until Ctrl-C."""
    from weir.spark.sql.statements import Watch

    try:
        if isinstance(statement, Watch):
            print_watched(console.watch(statement), as_json=as_json)
            return
        first = True
        with closing(console.live(statement)) as rows:
            for some in rows:
                print_live(some.columns, some.rows, first=first, as_json=as_json)
                sys.stdout.flush()
                first = False
    except KeyboardInterrupt:
        click.echo("", err=True)


def _prompt(console: "Console", *, as_json: bool) -> None:
    from weir.cli.sql_prompt import Words, statements
    from weir.spark.sql.cluster import table_name, topic_named

    topics: list[str] = []
    columns: dict[tuple[str, ...], list[str]] = {}

    def look() -> None:
        columns.clear()
        with suppress(WeirError):
            topics[:] = [table_name(topic) for topic in console.tables.names()]

    def columns_of(table: tuple[str, ...]) -> list[str]:
        if table not in columns:
            columns[table] = []
            with suppress(WeirError):
                columns[table] = [one.name for one in console.tables.columns(topic_named(table))]
        return columns[table]

    click.echo("SQL on topics; statements end with ;  SHOW TABLES; lists them, exit or Ctrl-D leaves.")
    look()
    for text in statements(Words(lambda: topics, columns_of)):
        try:
            _run(console, [text], as_json=as_json)
        except WeirError as wrong:
            click.secho(str(wrong), fg="red", err=True)
        except KeyboardInterrupt:
            click.echo("stopped", err=True)
        look()


def _read(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError(f"cannot read {file}: {failure}", hint="check --file") from None
