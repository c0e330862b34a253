"""What source and sink of PostgreSQL share: a connection, names in quotes, and keys of tables."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weir.connect.secrets import reveal
from weir.connect.task import Job
from weir.model.errors import ConfigError, ConnectorError
from weir.model.installation import install_command

if TYPE_CHECKING:
    import psycopg

_CONNECT_TIMEOUT_S = 10
#: A server that is gone without a word is noticed after a minute.
_ALIVE: dict[str, Any] = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_LONGEST_WORDS = 500
#: Parts of a name, with the quotes that they have.
_NAMES = re.compile(r'"[^"]+"|[^."]+')


def connect(job: Job) -> "psycopg.Connection[Any]":
    try:
        import psycopg
    except ImportError:
        raise ConfigError(
            "PostgreSQL needs psycopg", hint=f"install it with {install_command('connect')}"
        ) from None
    password = reveal(job.option("password"))
    more: dict[str, Any] = {} if password is None else {"password": password}
    name = f"weir connect {job.definition.name.local}"
    more |= {"application_name": name, "connect_timeout": _CONNECT_TIMEOUT_S, "client_encoding": "UTF8"}
    try:
        return psycopg.connect(job.option("dsn"), **_ALIVE, **more)
    except psycopg.ProgrammingError as wrong:
        raise ConfigError(
            f"dsn cannot be read: {str(wrong).strip()}", hint="host=... dbname=... user=..."
        ) from None


@contextmanager
def one_sentence() -> Iterator[None]:
    """Errors of PostgreSQL's, which have several lines, as one of Weir's."""
    try:
        yield
    except Exception as failure:
        if type(failure).__module__.partition(".")[0] != "psycopg":
            raise
        said = " ".join(str(failure).split())[:_LONGEST_WORDS]
        raise ConnectorError(f"PostgreSQL: {said or type(failure).__name__}") from failure


def identifier(name: str, *, one: bool = False) -> str:
    """In quotes; `schema.table` is two names, unless it is `one`. A name that is in quotes may have dots."""
    parts = [name] if one else _NAMES.findall(name)
    return ".".join('"' + part.strip('"').replace('"', '""') + '"' for part in parts)


def in_query(text: str) -> str:
    """A part of a query that has places for values: its own percent signs are no places."""
    return text.replace("%", "%%")


def column_name(name: str) -> str:
    """In quotes, for a query that has places for values."""
    return in_query(identifier(name, one=True))


def primary_key(connection: "psycopg.Connection[Any]", table: str) -> tuple[str, ...]:
    """Its columns, in their order; empty if it has none."""
    query = """SELECT a.attname FROM pg_index i
        CROSS JOIN LATERAL unnest(i.indkey::int[]) WITH ORDINALITY AS k(number, place)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
        WHERE i.indrelid = %s::regclass AND i.indisprimary ORDER BY k.place"""
    return tuple(row[0] for row in connection.execute(query, (identifier(table),)).fetchall())


def may_be_null(connection: "psycopg.Connection[Any]", table: str) -> set[str]:
    """Columns of a table that are not declared otherwise; none of a view, whose columns say nothing of it."""
    query = """SELECT attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.oid = %s::regclass AND c.relkind IN ('r', 'p') AND NOT a.attnotnull AND a.attnum > 0"""
    return {row[0] for row in connection.execute(query, (identifier(table),)).fetchall()}


def columns_of(connection: "psycopg.Connection[Any]", table: str) -> dict[str, str]:
    """Names and types of a table's columns, by PostgreSQL's own names; empty if there is no such table."""
    query = """SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
        WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
        ORDER BY attnum"""
    return dict(connection.execute(query, (identifier(table),)).fetchall())
