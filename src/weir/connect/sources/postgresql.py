"""Rows of PostgreSQL, read in the order of a column that grows; each row once for each value that it has there.

A row may become visible after one that is behind it: its transaction took the earlier number or time, and
committed later. So a page ends where nothing earlier can come any more: first it is seen how far the table goes,
and who writes to it now; when all of those have ended, the rows up to there are read. Writers are not held up.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weir.connect.postgresql import connect, identifier, primary_key
from weir.connect.sources.base import RowSource
from weir.connect.task import Job
from weir.connect.values import record_of
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
    1082: {"type": "int", "logicalType": "date"},
    1114: {"type": "long", "logicalType": "timestamp-micros"},
    1184: {"type": "long", "logicalType": "timestamp-micros"},
}
_NUMERIC, _BYTES = 1700, 17
_TIMES = (1082, 1114, 1184)


class PostgresqlSource(RowSource):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        if (job.option("table") is None) == (job.option("query") is None):
            raise ConfigError("a source of PostgreSQL needs table or query", hint="one of them")
        self._rows: psycopg.Connection[Any] | None = None
        self._cursor: tuple[str, ...] = ()
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
        self._rows = connect(self.job)
        self._rows.autocommit = True
        self._rows.execute("SET timezone TO 'UTC'; SET datestyle TO 'ISO'")
        self._upper = None
        self._describe()

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None
        super().close()

    # --- what there is ---

    @property
    def _base(self) -> str:
        table, query = self.job.option("table"), self.job.option("query")
        return _said(f"{identifier(table)} AS r" if query is None else f"({query.rstrip().rstrip(';')}\n) AS r")

    def _ask(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if self._rows is None:
            raise ConnectorError("the source is not open")
        return self._rows.execute(query.encode(), tuple(values)).fetchall()

    def _describe(self) -> None:
        """Columns, key and cursor; the schema of the topic."""
        if self._rows is None:
            raise ConnectorError("the source is not open")
        wanted = self.job.option("columns")
        chosen = "*" if wanted is None else ", ".join(_name(one) for one in wanted)
        about = self._rows.execute(f"SELECT {chosen} FROM {self._base} LIMIT 0".encode(), ()).description or []
        self._names = [one.name for one in about]
        self._types = [one.type_code for one in about]
        table, column = self.job.option("table"), self.job.option("column")
        own = primary_key(self._rows, table) if table is not None else ()
        self._key = self.job.option("key") or own
        ties = [one for one in (own or self._key) if one != column]
        self._cursor = (column, *ties)
        cursor = ", ".join(_name(one) for one in self._cursor)
        described = self._rows.execute(f"SELECT {cursor} FROM {self._base} LIMIT 0".encode(), ()).description or []
        self._cursor_types = [one.type_code for one in described]
        self._casts = [self._ask("SELECT format_type(%s, NULL)", (kind,))[0][0] for kind in self._cursor_types]
        if not self.known():
            columns = [(name, self._avro(kind)) for name, kind in zip(self._names, self._types, strict=True)]
            self.declare(record_of(self.topic.local, columns))

    def _avro(self, kind: int) -> Any:
        if kind == _NUMERIC:
            return self.job.option("numeric")
        if kind == _BYTES and self.job.option("values") == "avro":
            return "bytes"
        return _AVRO.get(kind, "string")

    # --- reading ---

    def step(self) -> int:
        position = self.positions.get(_KEY)
        if self._upper is None:
            self._look(position)
        if self._upper is None or not self._settled():
            self.status.lag = 0 if self._upper is None else self.status.lag
            return 0
        limit = self.job.option("batch")
        rows = self._page(position, self._upper, limit)
        if len(rows) < limit:
            self._upper = None
        if not rows:
            return 0
        count = len(self._names)
        dicts = [dict(zip(self._names, row[:count], strict=True)) for row in rows]
        last = [str(one) for one in rows[-1][count:]]
        self.send([self.message(row, self._key) for row in dicts], {_KEY: last})
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
        wait = self.job.option("wait_for")
        table = self.job.option("table")
        if wait == "auto":
            wait = "transactions" if table is None or self._cursor_types[0] in _TIMES else "table"
        if wait == "none":
            return set()
        if wait == "table":
            # A writer locks the table before it takes a number from a sequence.
            query = """SELECT virtualtransaction FROM pg_locks
                WHERE locktype = 'relation' AND relation = %s::regclass
                AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
                AND granted AND pid <> pg_backend_pid()"""
            return {row[0] for row in self._ask(query, (identifier(table),))}
        query = """SELECT l.virtualtransaction FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
            WHERE l.locktype = 'virtualxid' AND l.granted AND l.pid <> pg_backend_pid()
            AND a.datname = current_database() AND a.backend_type = 'client backend'"""
        return {row[0] for row in self._ask(query)}

    def _settled(self) -> bool:
        if self._waited_for:
            query = "SELECT DISTINCT virtualtransaction FROM pg_locks WHERE virtualtransaction = ANY(%s)"
            self._waited_for &= {row[0] for row in self._ask(query, (list(self._waited_for),))}
        return not self._waited_for

    def _page(self, position: Sequence[str] | None, upper: Sequence[str], limit: int) -> list[tuple[Any, ...]]:
        names = self._cursor_names()
        columns = [
            *(f"r.{_name(one)}" for one in self._names),
            *(f"{name}::text" for name in names),
        ]
        where, values = self._beyond(position)
        until = f"({', '.join(names)}) <= ({self._places()})"
        query = (
            f"SELECT {', '.join(columns)} FROM {self._base} WHERE {where} AND {until} ORDER BY {', '.join(names)}"
        )
        return self._ask(f"{query} LIMIT {limit}", [*values, *upper])

    def _beyond(self, position: Sequence[str] | None) -> tuple[str, list[str]]:
        if position is None:
            return "true", []
        names = ", ".join(self._cursor_names())
        return f"({names}) > ({self._places()})", list(position)

    def _cursor_names(self) -> list[str]:
        """Of the row's own columns: an output of the same name would be ordered by its text."""
        return [f"r.{_name(one)}" for one in self._cursor]

    def _places(self) -> str:
        return ", ".join(f"%s::text::{cast}" for cast in self._casts)


def _said(text: str) -> str:
    """What the user wrote, in a query with places for values: its own percent signs are no places."""
    return text.replace("%", "%%")


def _name(column: str) -> str:
    return _said(identifier(column, one=True))
