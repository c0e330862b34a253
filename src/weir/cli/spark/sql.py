"""`weir sql`: topics as tables, at a prompt or from a script."""

import os
import re
import sys
from pathlib import Path

import click

from weir.cli.lazy import Lazy, LazyGroup
from weir.cli.output import Output
from weir.cli.remote import Remote, remote_options
from weir.cli.spark.common import master_option, need_spark
from weir.cli.spark.sql_session import Session, hello_of, open_session
from weir.cli.spark.sql_views import Printer
from weir.model.errors import ConfigError, WeirError

_PROMPT_ROWS = 1_000


@click.group(
    cls=LazyGroup,
    lazy={"server": Lazy("weir.cli.spark.sql_server:server", "The warm Spark that answers: status, stop.")},
    invoke_without_command=True,
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
  weir sql -e 'SELECT nothing FROM orders' --debug          what Spark itself says of it
  weir sql --url https://weir:8443 --ca ca.pem --token file:me.token

\b
With -e or -f, all statements are looked at before the first is done: if one cannot
be understood, or names what is not there, none is done. Then the first that fails
ends it, with exit code 1. 2: the options are wrong. 130: Ctrl-C.

\b
The first weir sql starts a server that keeps Spark warm for the next ones, and ends
when nobody has asked it for 10 minutes; WEIR_SQL_SERVER=off, or --no-server, does without.
""",
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
@master_option("Where Spark runs queries")
@click.option("--no-server", is_flag=True, help="Start Spark in this process, for this time only.")
@click.option("--debug", is_flag=True, help="With an error, print what Spark and Java said, too.")
@remote_options
@click.pass_context
def sql(
    ctx: click.Context,
    /,
    *,
    texts: tuple[str, ...],
    file: str | None,
    limit: int | None,
    start: str,
    no_runner: bool,
    checkpoints: str | None,
    kafka: str | None,
    master: str,
    no_server: bool,
    debug: bool,
    remote: Remote,
    out: Output,
) -> None:
    """Query topics, and define streams, with SQL on Spark. Statements end with semicolons."""
    if ctx.invoked_subcommand is not None:
        return
    need_spark()
    given = [*texts, *([_read(file)] if file is not None else [])]
    asked = not given and sys.stdin.isatty()
    if not given and not asked:
        given = [sys.stdin.read()]
    remote.changes = asked or any(map(_CHANGING.search, given))
    hello = hello_of(
        remote,
        as_json=out.json,
        limit=limit or (_PROMPT_ROWS if asked else None),
        start=start,
        kafka=kafka,
        checkpoints=checkpoints,
        no_runner=no_runner,
    )
    remote.reach()
    printer = Printer(out)
    wait = printer.spinner
    session = open_session(
        hello,
        master,
        server=not no_server,
        waiting=lambda: wait.start("starting the server of weir sql; it stays for the next statements"),
        ready=wait.stop,
    )
    try:
        if asked:
            _prompt(session, printer, debug=debug)
        else:
            _script(session, printer, given, debug=debug)
    finally:
        session.close()


#: A statement that may change something; a comment or a text that looks like one does no harm.
_CHANGING = re.compile(
    r"(?:\A|;|\n)\s*(?:create|drop|alter|insert|pause|resume|truncate|delete|update|merge|set)\b", re.IGNORECASE
)


def _script(session: Session, printer: Printer, texts: list[str], *, debug: bool) -> None:
    """All statements of all texts; the first that fails ends it."""
    try:
        if not session.run(texts, printer.take):
            click.echo("", err=True)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except WeirError as wrong:
        printer.spinner.stop()
        _explain(wrong, debug=debug)
        raise
    finally:
        printer.spinner.stop()


def _explain(wrong: WeirError, *, debug: bool) -> None:
    """What the programs below said, for those who asked for it."""
    if not debug:
        return
    from weir.spark.serving.traces import trace_of

    click.echo(trace_of(wrong) or "no more is known of it than this:", err=True)


def _prompt(session: Session, printer: Printer, *, debug: bool) -> None:
    from weir.cli.spark.sql_prompt import HELP, Words, is_help, statements

    words = Words(session.names)
    click.echo(
        "SQL on topics; statements end with ;  help tells more, SHOW TABLES; lists them, exit or Ctrl-D leaves."
    )
    words.look()
    for text in statements(words):
        if is_help(text):
            click.echo(HELP)
            continue
        try:
            if not session.run([text], printer.take):
                click.echo("", err=True)
        except WeirError as wrong:
            printer.spinner.stop()
            _explain(wrong, debug=debug)
            click.secho(str(wrong), fg="red", err=True)
        except KeyboardInterrupt:
            click.echo("stopped", err=True)
        finally:
            printer.spinner.stop()
        words.look()


def _read(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise ConfigError(f"cannot read {file}: {failure}", hint="check --file") from None
