"""Who does the statements of `weir sql`: the user's warm server, or this process itself."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import click

from weir.cli.remote import Remote
from weir.cli.spark.common import need_spark, quiet_session, spark_config, state_folder
from weir.model.errors import ConfigError, SparkSetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weir.spark.serving import messages as m

#: Turns the server off for a shell; and how many seconds one is kept that nobody uses.
SERVER_VARIABLE, IDLE_VARIABLE = "WEIR_SQL_SERVER", "WEIR_SQL_IDLE"


class Session(Protocol):
    """Where statements are done."""

    def run(self, texts: list[str], take: "Callable[[m.Answer], None]") -> bool:
        """What is said goes to `take`. False if something was interrupted that only ends so."""

    def names(self, table: tuple[str, ...] | None = None) -> list[str]:
        """Tables, or columns of one."""

    def close(self) -> None: ...


def open_session(
    hello: "m.Hello", master: str, *, server: bool, waiting: Callable[[], None], ready: Callable[[], None]
) -> Session:
    """`waiting` is called if it takes seconds, `ready` when it is there."""
    if server and os.environ.get(SERVER_VARIABLE, "on").lower() not in ("off", "0", "no", "false"):
        from weir.spark.serving.link import open_link

        try:
            return open_link(hello, master, state_folder(), idle_s=idle_s(), starting=waiting)
        except SparkSetupError as failure:
            click.echo(f"weir: {failure.what}; this process starts a Spark of its own", err=True)
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
    """Spark in this process, which ends with it."""

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
        from weir.spark.serving import messages as m

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
    """What a session is told. Paths are whole: the server was started elsewhere."""
    from weir.spark.serving.folder import fingerprint
    from weir.spark.serving.messages import Hello

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
