"""`weir sql`: topics as tables, at a prompt or from a script.

The user's warm Spark server executes statements (`weir sql server` manages it), or else this process.
"""

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from weir.cli.command import Lazy, LazyGroup, examples
from weir.cli.output import Column, Format, Output
from weir.cli.remote import Remote, output_options, remote_options
from weir.cli.spark_session import master_option, need_spark, quiet_session, spark_config, state_folder
from weir.cli.sql_views import Printer
from weir.model.errors import ConfigError, SparkSetupError, WeirError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.spark.serving import protocol as m
    from weir.spark.serving.protocol import Status


#: The first turns the server off for a shell; the second sets its idle timeout in seconds.
SERVER_VARIABLE, IDLE_VARIABLE = "WEIR_SQL_SERVER", "WEIR_SQL_IDLE"


class Session(Protocol):
    """An executor of statements."""

    def run(self, texts: list[str], take: "Callable[[m.Answer], None]") -> bool:
        """Run the statements and pass answers to `take`. False after an interrupt of an endless one."""

    def names(self, table: tuple[str, ...] | None = None) -> list[str]:
        """Tables, or columns of one table."""

    def close(self) -> None: ...


def open_session(
    hello: "m.Hello", master: str, *, server: bool, waiting: Callable[[], None], ready: Callable[[], None]
) -> Session:
    """Call `waiting` if the start takes seconds, `ready` once it is complete."""
    if server and os.environ.get(SERVER_VARIABLE, "on").lower() not in ("off", "0", "no", "false"):
        from weir.spark.serving.link import open_link

        try:
            return open_link(hello, master, state_folder(), idle_s=idle_s(), starting=waiting)
        except SparkSetupError as failure:
            click.echo(f"weir: {failure.what}; this process starts its own Spark", err=True)
        finally:
            ready()
    return OwnSession(hello, master)


def idle_s() -> float:
    from weir.spark.serving.link import DEFAULT_IDLE_S

    given = os.environ.get(IDLE_VARIABLE)
    try:
        return DEFAULT_IDLE_S if given is None else max(1.0, float(given))
    except ValueError:
        raise ConfigError(f"{IDLE_VARIABLE} is {given!r}", hint="write seconds") from None


class OwnSession:
    """Spark within this process."""

    def __init__(self, hello: "m.Hello", master: str) -> None:
        need_spark()
        from weir.spark.serving.session import SqlSession

        self._take: Callable[[m.Answer], None] = lambda _: None
        self._master = master
        self._session = SqlSession(hello, self._spark, self._say)

    def run(self, texts: list[str], take: "Callable[[m.Answer], None]") -> bool:
        self._take = take
        try:
            self._session.run(texts)
        except KeyboardInterrupt:
            if not self._session.live:
                raise
            return False
        return True

    def _say(self, answer: "m.Answer") -> None:
        self._take(answer)

    def names(self, table: tuple[str, ...] | None = None) -> list[str]:
        return self._session.names(table)

    def close(self) -> None:
        """Spark ends with the process."""

    def _spark(self) -> "SparkSession":
        from weir.spark.serving import protocol as m

        self._take(m.Starting())
        try:
            return quiet_session("weir-sql", master=self._master, config=spark_config())
        finally:
            self._take(m.Starting(over=True))


def hello_of(
    remote: Remote,
    *,
    as_json: bool,
    limit: int | None,
    start: str,
    kafka: str | None,
    checkpoints: str | None,
    no_runner: bool,
) -> "m.Hello":
    """The settings of a session. Paths are absolute, because the server started in another folder."""
    from weir.spark.serving.protocol import Hello, fingerprint

    access, folder = remote.access(), ""
    with suppress(OSError):
        folder = os.getcwd()
    return Hello(
        fingerprint=fingerprint(),
        url=remote.url,
        token=access.token,
        ca=access.ca,
        certificate=access.certificate,
        key=access.key,
        kafka=kafka,
        limit=limit,
        start=start,
        as_json=as_json,
        checkpoints=None if checkpoints is None else os.path.abspath(checkpoints),
        no_runner=no_runner,
        folder=folder,
    )


@click.group(
    epilog="""
\b
Examples:
  weir sql server status
  weir sql server stop         the next weir sql starts another one
"""
)
def server() -> None:
    """Manage the warm Spark of weir sql: it starts with the first statement, and stops after 10 idle minutes."""


@server.command(epilog=examples("weir sql server status", "weir sql server status -o wide"))
@output_options
def status(*, out: Output) -> None:
    """Show the running servers: their Weir, start and idle timeout."""
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
            one.clients - 1,  # this command is a client, too
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
    """Stop the servers and their statements."""
    need_spark()
    from weir.spark.serving import link, protocol

    count = sum(1 for path in link.servers() if link.ask(path, protocol.Stop()) is not None)
    click.echo(f"{count} stopped" if count else "no server of weir sql runs")


def _found() -> "list[Status]":
    need_spark()
    from weir.spark.serving import link, protocol

    answers = [link.ask(path, protocol.AskStatus()) for path in link.servers()]
    return [one for one in answers if isinstance(one, protocol.Status)]


_PROMPT_ROWS = 1_000


@click.group(
    cls=LazyGroup,
    lazy={"server": Lazy("weir.cli.sql:server", "The warm Spark server: status, stop.")},
    invoke_without_command=True,
    epilog="""
\b
Examples:
  weir sql                                                  a prompt
  weir sql -e 'SELECT * FROM orders LIMIT 10'
  weir sql -e 'SELECT STREAM * FROM orders' --limit 5       rows as they arrive
  weir sql -e 'SELECT STREAM * FROM orders' --from earliest --json | jq .amount
  weir sql -e 'CREATE STREAM big AS SELECT * FROM orders WHERE amount > 100'
  weir sql -e "INSERT INTO orders (id, amount) VALUES (1, 9.5), (2, 3)"
  weir sql -e 'WATCH STREAMS'                               their progress, until Ctrl-C
  weir sql -f report.sql --json
  weir sql -e 'SELECT nothing FROM orders' --debug          with Spark's own error
  weir sql --url https://weir:8443 --ca ca.pem --token file:me.token

\b
With -e or -f, weir sql validates all statements before it runs the first: a syntax error
or an unknown name prevents all of them. The first statement that fails ends the script,
with exit code 1. 2: the options are wrong. 130: Ctrl-C.

\b
The first weir sql starts a server that keeps Spark warm for the next ones. It stops after
10 idle minutes; WEIR_SQL_SERVER=off, or --no-server, runs without it.
""",
)
@click.option(
    "-e", "--execute", "texts", multiple=True, metavar="SQL", help="Run these statements; may be repeated."
)
@click.option("-f", "--file", "file", metavar="FILE", help="Run a file of statements; - reads standard input.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Print at most N rows of a result.")
@click.option(
    "--from",
    "start",
    type=click.Choice(["latest", "earliest"]),
    default="latest",
    show_default=True,
    help="Start position of SELECT STREAM.",
)
@click.option("--no-runner", is_flag=True, help="Start no runner for streams, if weir streams run runs elsewhere.")
@click.option(
    "--checkpoints", metavar="FOLDER", help="Checkpoints of a runner started here; by default beside the data."
)
@click.option(
    "--kafka",
    metavar="HOST:PORT",
    help="The Kafka listener, if the address that the server announces does not work.",
)
@master_option("Where Spark runs queries")
@click.option("--no-server", is_flag=True, help="Start Spark in this process, for this command only.")
@click.option("--debug", is_flag=True, help="Print errors of Spark and Java, too.")
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


#: Matches a statement that may change something; a false match in a comment or a string does no harm.
_CHANGING = re.compile(
    r"(?:\A|;|\n)\s*(?:create|drop|alter|insert|pause|resume|truncate|delete|update|merge|set)\b", re.IGNORECASE
)


def _script(session: Session, printer: Printer, texts: list[str], *, debug: bool) -> None:
    """Run all statements of all texts; the first failure ends the script."""
    try:
        if not session.run(texts, printer.take):
            click.echo("", err=True)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except WeirError as wrong:
        printer.spinner.stop()
        _explain(wrong, debug=debug)
        raise
    finally:
        printer.spinner.stop()


def _explain(wrong: WeirError, *, debug: bool) -> None:
    """Print the errors of Spark and Java, if the user wants them."""
    if not debug:
        return
    from weir.spark.serving.protocol import trace_of

    click.echo(trace_of(wrong) or "no details are known beyond this:", err=True)


def _prompt(session: Session, printer: Printer, *, debug: bool) -> None:

    from weir.cli.sql_prompt import HELP, Words, is_help, statements

    words = Words(session.names)
    click.echo("SQL on topics; statements end with ;  try help, or SHOW TABLES;  leave with exit or Ctrl-D.")
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
