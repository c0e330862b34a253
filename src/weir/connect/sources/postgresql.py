"""Rows of PostgreSQL, read in the order of a column that grows; each row once for each value that it has there.

A row may become visible after one that is behind it: its transaction took the earlier number or time, and
committed later. So a page ends where nothing earlier can come any more: first it is seen how far the table goes,
and who writes to it now; when all of those have ended, the rows up to there are read. Writers are not held up.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from weir.connect.postgresql import (
    column_name,
    connect,
    identifier,
    in_query,
    may_be_null,
    one_sentence,
    primary_key,
)
from weir.connect.sources.base import RowSource
from weir.connect.task import Job
from weir.model.errors import ConfigError, ConnectorError

if TYPE_CHECKING:
    import psycopg

_KEY = "rows"
#: By oid: what Avro calls them. Others are texts.
_AVRO: dict[int, Any] = {
    16: "boolean",
    20: "long",
    21: "int",
    23: "int",
    26: "long",
    700: "float",
    701: "double",
    17: "bytes",
    1082: {"type": "int", "logicalType": "date"},
    1114: {"type": "long", "logicalType": "timestamp-micros"},
    1184: {"type": "long", "logicalType": "timestamp-micros"},
}
_NUMERIC = 1700
_TIMES = (1082, 1114, 1184)
_KIND = "SELECT relkind::text FROM pg_class WHERE oid = %s::regclass"
#: A sequence of the column's own, of which sessions take many numbers at once.
_IN_BLOCKS = """SELECT 1 FROM pg_depend d JOIN pg_sequence s ON s.seqrelid = d.objid
    JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
    WHERE d.classid = 'pg_class'::regclass AND d.refobjid = %s::regclass AND a.attname = %s AND s.seqcache > 1"""
#: Who writes to the table or to a part of it: a writer locks it before it takes a number from a sequence.
_WRITERS = """SELECT virtualtransaction FROM pg_locks
    WHERE locktype = 'relation' AND granted AND pid IS DISTINCT FROM pg_backend_pid()
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    AND relation IN (SELECT t.oid FROM (SELECT %s::regclass AS oid) t
        UNION SELECT p.relid FROM (SELECT %s::regclass AS oid) t, pg_partition_tree(t.oid) p)"""
#: All that are open, and those that are prepared. Who has no right to look at others is not told what they are, so
#: what is known not to write is left out, and not the other way round.
_OPEN = """SELECT l.virtualtransaction FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND (l.locktype = 'virtualxid' AND a.datname = current_database()
        AND coalesce(a.backend_type, '') NOT IN ('autovacuum worker', 'parallel worker', 'walsender')
        OR l.locktype = 'transactionid' AND l.pid IS NULL)"""


class PostgresqlSource(RowSource):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._rows: psycopg.Connection[Any] | None = None
        self._cursor: tuple[str, ...] = ()
        #: Whether no two rows have the same cursor.
        self._unique = False
        self._wait_for = ""
        self._key: tuple[str, ...] = ()
        self._names: list[str] = []
        self._types: list[int] = []
        self._casts: list[str] = []
        #: How far the table went when it was looked at, and which transactions have to end before it is read.
        self._upper: tuple[str, ...] | None = None
        self._waited_for: set[str] = set()
        self.status.idle_s = job.option("poll") / 1000

    def open(self) -> None:
        super().open()
        with one_sentence():
            self._rows = connect(self.job)
            self._rows.autocommit = True
            self._rows.execute("SET timezone TO 'UTC'; SET datestyle TO 'ISO'; SET intervalstyle TO 'postgres'")
            from weir.connect.postgresql_types import read_everything  # psycopg is there: it connected

            read_everything(self._rows)
            self._upper = None
            self._describe()
            self._wait_for = self._whom()

    def interrupt(self) -> None:
        if self._rows is not None:
            with suppress(Exception):
                self._rows.cancel()

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None
        super().close()

    # --- what there is ---

    @property
    def _base(self) -> str:
        table, query = self.job.option("table"), self.job.option("query")
        return in_query(f"{identifier(table)} AS r" if query is None else f"({query.rstrip().rstrip(';')}\n) AS r")

    def _ask(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if self._rows is None:
            raise ConnectorError("the source is not open")
        return self._rows.execute(query.encode(), tuple(values)).fetchall()

    def _describe(self) -> None:
        """Columns, key and cursor; the schema of the topic."""
        if self._rows is None:
            raise ConnectorError("the source is not open")
        about = self._rows.execute(f"SELECT {self._chosen()} FROM {self._base} LIMIT 0".encode(), ()).description
        self._set_columns(about or [])
        table = self.job.option("table")
        own = primary_key(self._rows, table) if table is not None else ()
        self._key = self.job.option("key") or own
        self._cursor = self._told_apart(own)
        self._unique = bool(own)
        cursor = ", ".join(self._cursor_names())
        described = self._rows.execute(f"SELECT {cursor} FROM {self._base} LIMIT 0".encode(), ()).description or []
        self._cursor_types = [one.type_code for one in described]
        self._casts = [self._ask("SELECT format_type(%s, NULL)", (kind,))[0][0] for kind in self._cursor_types]

    def _told_apart(self, own: Sequence[str]) -> tuple[str, ...]:
        """By which columns rows stand in an order: `column`, and those of the key. A row without a key has no
        place in it, and would be missed; so what may be null is no part of it, unless it has been before."""
        table, column = self.job.option("table"), self.job.option("column")
        found = (column, *(one for one in (own or self._key) if one != column))
        if own or table is None or self._rows is None or len(self.positions.get(_KEY, ())) == len(found):
            return found
        unsure = may_be_null(self._rows, table)
        return (column, *(one for one in found[1:] if one not in unsure))

    def _chosen(self) -> str:
        wanted = self.job.option("columns")
        return "r.*" if wanted is None else ", ".join(f"r.{column_name(one)}" for one in wanted)

    def _set_columns(self, about: Sequence[Any]) -> None:
        self._names = [one.name for one in about]
        self._types = [one.type_code for one in about]
        self.declare([(name, self._avro(kind)) for name, kind in zip(self._names, self._types, strict=True)])

    def _avro(self, kind: int) -> Any:
        return self.job.option("numeric") if kind == _NUMERIC else _AVRO.get(kind, "string")

    def _whom(self) -> str:
        """Whose transactions are waited for; ConfigError where rows could come late unseen."""
        wait, table = self.job.option("wait_for"), self.job.option("table")
        if wait == "none":
            return "none"
        if self._ask("SELECT pg_is_in_recovery()")[0][0]:
            raise ConfigError(
                "this PostgreSQL is a standby, which does not say what is being written on its primary",
                hint='read from the primary, or set wait_for = "none" if nothing commits out of order',
            )
        plain = table is not None and self._ask(_KIND, (identifier(table),))[0][0] in ("r", "p")
        if wait == "auto":
            wait = "table" if plain and self._cursor_types[0] not in _TIMES else "transactions"
        if table is not None and self._ask(_IN_BLOCKS, (identifier(table), self.job.option("column"))):
            raise ConfigError(
                f"numbers of {self.job.option('column')} come in blocks: a session may write an earlier one later",
                hint="ALTER SEQUENCE ... CACHE 1, or take the time of the last change as column",
            )
        if wait == "table" and not plain:
            raise ConfigError('wait_for = "table" needs a table', hint='"transactions"')
        return str(wait)

    # --- reading ---

    def step(self) -> int:
        with one_sentence():
            return self._step()

    def _step(self) -> int:
        position = self.positions.get(_KEY)
        if self._upper is None:
            self._look(position)
        if self._upper is None or not self._settled():
            self.status.lag = 0 if self._upper is None else self.status.lag
            return 0
        rows = self._page(position, self._upper)
        if not rows:
            return 0
        count, keys = len(self._names), len(self._key)
        messages = []
        for row in rows:
            key = dict(zip(self._key, row[count : count + keys], strict=True))
            messages.append(self.message(dict(zip(self._names, row[:count], strict=True)), self._key, key))
        last = [str(one) for one in rows[-1][count + keys :]]
        self.send(messages, {_KEY: last})
        self.status.position = ", ".join(f"{name} = {at}" for name, at in zip(self._cursor, last, strict=True))
        return len(rows)

    def _look(self, position: Sequence[str] | None) -> None:
        """How far the table goes now, and who may still write before that."""
        names = self._cursor_names()
        texts = ", ".join(f"{name}::text" for name in names)
        order = ", ".join(f"{name} DESC" for name in names)
        where, values = self._beyond(position)
        not_null = " AND ".join(f"{name} IS NOT NULL" for name in names)
        found = self._ask(
            f"SELECT {texts} FROM {self._base} WHERE {not_null} AND {where} ORDER BY {order} LIMIT 1", values
        )
        if found:
            self._upper = tuple(found[0])
            self._waited_for = self._writers()

    def _writers(self) -> set[str]:
        """Transactions that are open now and may write rows before those that are seen."""
        if self._wait_for == "none":
            return set()
        if self._wait_for == "table":
            table = identifier(self.job.option("table"))
            return {row[0] for row in self._ask(_WRITERS, (table, table))}
        return {row[0] for row in self._ask(_OPEN)}

    def _settled(self) -> bool:
        if self._waited_for:
            query = "SELECT DISTINCT virtualtransaction FROM pg_locks WHERE virtualtransaction = ANY(%s)"
            self._waited_for &= {row[0] for row in self._ask(query, (list(self._waited_for),))}
        return not self._waited_for

    def _page(self, position: Sequence[str] | None, upper: Sequence[str]) -> list[tuple[Any, ...]]:
        """Rows behind the position, with their keys and cursors. One more than a page is asked for: rows that
        nothing tells apart are not parted, since the next page begins behind their value."""
        names, limit = self._cursor_names(), self.job.option("batch")
        columns = [
            self._chosen(),
            *(f"r.{column_name(one)}" for one in self._key),
            *(f"{name}::text" for name in names),
        ]
        where, values = self._beyond(position)
        until = f"({', '.join(names)}) <= ({self._places()})"
        order = ", ".join(names)
        query = f"SELECT {', '.join(columns)} FROM {self._base} WHERE {where} AND {until} ORDER BY {order}"
        rows = self._read_page(f"{query} LIMIT {limit + 1}", [*values, *upper])
        if len(rows) <= limit:
            self._upper = None
            return rows
        whole, size = rows[:limit], len(names)
        if not self._unique:
            whole = [row for row in whole if row[-size:] != rows[limit][-size:]]
        if not whole:
            raise ConnectorError(
                f"more than {limit} rows have the same {' and '.join(self._cursor)}, and nothing tells them apart",
                hint='name columns that do: key = ["..."], or set a larger batch',
            )
        return whole

    def _read_page(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """By the columns that the table has now: they may have changed since it was last read."""
        if self._rows is None:
            raise ConnectorError("the source is not open")
        done = self._rows.execute(query.encode(), tuple(values))
        more = len(self._key) + len(self._cursor)
        about = (done.description or [])[:-more]
        if [(one.name, one.type_code) for one in about] != list(zip(self._names, self._types, strict=True)):
            self._set_columns(about)
        return done.fetchall()

    def _beyond(self, position: Sequence[str] | None) -> tuple[str, list[str]]:
        if position is None:
            return "true", []
        names = ", ".join(self._cursor_names())
        return f"({names}) > ({self._places()})", list(position)

    def _cursor_names(self) -> list[str]:
        """Of the row's own columns: an output of the same name would be ordered by its text."""
        return [f"r.{column_name(one)}" for one in self._cursor]

    def _places(self) -> str:
        return ", ".join(f"%s::text::{cast}" for cast in self._casts)
