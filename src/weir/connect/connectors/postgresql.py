"""Rows of PostgreSQL, read in the order of a column that grows; each row once for each value that it has there.

A row may become visible after one that is behind it: its transaction took the earlier number or time, and
committed later. So a page ends where nothing earlier can come any more: first it is seen how far the table goes,
and who writes to it now; when all of those have ended, the rows up to there are read. Writers are not held up.

Messages as rows of PostgreSQL, exactly once: the position is a row of the same transaction.

Rows are added, or replace those of their key; a message without a value deletes its key's row.

Values of PostgreSQL's that Python has no type for: dates beyond its years, infinity, intervals of months.

What source and sink of PostgreSQL share: a connection, names in quotes, and keys of tables.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from psycopg import DataError
from psycopg.adapt import Loader
from psycopg.types.datetime import DateLoader, TimestampLoader, TimestamptzLoader

from weir.client.kafka.cluster import Partition
from weir.connect.connectors.base import RowSource, Sink
from weir.connect.options import reveal
from weir.connect.reader import Piece
from weir.connect.task import Job, Message
from weir.connect.values import key_row
from weir.model.diagnosis import install_command
from weir.model.errors import ConfigError, ConnectorError

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


#: As databases' change logs have them: the ends of the numbers, of microseconds and of days.
FOREVER_US, FOREVER_DAYS = (1 << 63) - 1, (1 << 31) - 1
_MOMENT = re.compile(r"(\d+)-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?(?:[+]00)?( BC)?")
_DAY_US = 86_400_000_000
#: Python's years, in days since 1970.
_FIRST, _LAST = -719_162, 2_932_896
#: Types whose own text says it best: JSON with all its digits, times of 24:00, intervals of months, ranges, ...
_TEXTS = (114, 3802, 1083, 1266, 1186, 2950, 869, 650, 3904, 3906, 3908, 3910, 3912, 3926)
_MULTIRANGES = (4451, 4532, 4533, 4534, 4535, 4536)


class _Text(Loader):
    def load(self, data: Any) -> str:
        return bytes(data).decode()


class _Date(DateLoader):
    def load(self, data: Any) -> Any:
        try:
            return super().load(data)
        except DataError:
            return _beyond(bytes(data).decode(), FOREVER_DAYS, 1)


class _Timestamp(TimestampLoader):
    def load(self, data: Any) -> Any:
        try:
            return super().load(data)
        except DataError:
            return _beyond(bytes(data).decode(), FOREVER_US, _DAY_US)


class _Timestamptz(TimestamptzLoader):
    def load(self, data: Any) -> Any:
        try:
            return super().load(data)
        except DataError:
            return _beyond(bytes(data).decode(), FOREVER_US, _DAY_US)


def _beyond(text: str, forever: int, per_day: int) -> int:
    """Since 1970, in UTC."""
    if text.endswith("infinity"):
        return -forever - 1 if text.startswith("-") else forever
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise DataError(f"{text!r} is no date")
    year, month, day, *clock = (int(part or 0) for part in found.groups()[:6])
    days = _days(1 - year if found[8] else year, month, day)
    if per_day == 1:
        return days
    hour, minute, second = clock
    return days * per_day + (hour * 3600 + minute * 60 + second) * 1_000_000 + int((found[7] or "").ljust(6, "0"))


def _days(year: int, month: int, day: int) -> int:
    """Since 1970, by the Gregorian calendar for all years; years begin in March here."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def text_of(number: int, kind: str) -> str | None:
    """Such a number as PostgreSQL writes it, for a column of this type; None if Python has a date for it."""
    forever, per_day = (FOREVER_DAYS, 1) if kind == "date" else (FOREVER_US, _DAY_US)
    if number in (forever, -forever - 1):
        return "infinity" if number > 0 else "-infinity"
    days, of_day = divmod(number, per_day)
    if _FIRST <= days <= _LAST:
        return None
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    of_year = day - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    year, of_month = year + era * 400 + (month >= 10), of_year - (153 * month + 2) // 5 + 1
    text = f"{year if year > 0 else 1 - year:04d}-{month + (3 if month < 10 else -9):02d}-{of_month:02d}"
    if per_day > 1:
        text += (
            f" {of_day // 3_600_000_000:02d}:{of_day // 60_000_000 % 60:02d}:{of_day % 60_000_000 / 1e6:09.6f}+00"
        )
    return text if year > 0 else f"{text} BC"


def read_everything(connection: "psycopg.Connection[Any]") -> None:
    """Let no value that PostgreSQL has be an error."""
    for kind in (*_TEXTS, *_MULTIRANGES):
        connection.adapters.register_loader(kind, _Text)
    connection.adapters.register_loader("date", _Date)
    connection.adapters.register_loader("timestamp", _Timestamp)
    connection.adapters.register_loader("timestamptz", _Timestamptz)


#: Positions of all sinks that write to this database; `connector` is an id that no other has.
_POSITIONS = """CREATE TABLE IF NOT EXISTS weir_connect_positions (
    connector text, topic text, partition integer, next_offset bigint NOT NULL,
    PRIMARY KEY (connector, topic, partition))"""
_TYPES = {
    "boolean": "boolean",
    "int": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "bytes": "bytea",
    "date": "date",
    "timestamp-millis": "timestamptz",
    "timestamp-micros": "timestamptz",
}
#: In place of a partition: the number beside it says which topic of its name it is.
_ID = -1
#: What would be refused to any message: rights, tables, columns and indexes that are not there.
_OURS = ("42501", "42P01", "42P10", "42703", "3F000")
#: A statement and its values; `offset` and the message are for dead letters.
Change = tuple[str, Sequence[Any]]


class PostgresqlSink(Sink):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._rows: psycopg.Connection[Any] | None = None
        self._columns: dict[str, str] = {}
        self._key: tuple[str, ...] = ()
        self._ids: dict[str, str] = {}

    @property
    def _database(self) -> "psycopg.Connection[Any]":
        if self._rows is None:
            raise ConnectorError("the sink is not open")
        return self._rows

    def open(self) -> None:
        with one_sentence():
            self._open()

    def interrupt(self) -> None:
        if self._rows is not None:
            with suppress(Exception):
                self._rows.cancel()

    def _open(self) -> None:
        self._rows = connect(self.job)
        self._database.execute(
            "SELECT pg_advisory_xact_lock(7305525)"
        )  # two that make the table at once may clash
        self._database.execute(_POSITIONS)
        self._database.commit()
        super().open()
        self._describe()

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None
        super().close()

    def kept(self) -> dict[Partition, int]:
        query = "SELECT topic, partition, next_offset FROM weir_connect_positions WHERE connector = %s"
        found = self._database.execute(query, (self.job.id,)).fetchall()
        self._database.commit()
        self._ids = {topic: f"{number:015x}" for topic, index, number in found if index == _ID}
        return {Partition(topic, index): offset for topic, index, offset in found if index != _ID}

    def kept_ids(self) -> dict[str, str]:
        """As many digits as a bigint has room for."""
        return {topic: found for topic, found in self._ids.items() if topic in self._names}

    def keep_ids(self, ids: Mapping[str, str]) -> None:
        for topic, found in ids.items():
            query = "INSERT INTO weir_connect_positions VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
            self._database.execute(query, (self.job.id, topic, _ID, int(found[:15], 16)))
        self._database.commit()

    def _describe(self) -> None:
        table = self.job.option("table")
        self._columns = columns_of(self._database, table)
        if not self._columns:
            if not self.job.option("create"):
                raise ConnectorError(f"there is no table {table}", hint="make it, or set create = true")
            self._create(table)
            self._columns = columns_of(self._database, table)
        self._key = self.job.option("key") or primary_key(self._database, table)
        self._database.commit()
        if self.job.option("mode") == "upsert" and not self._key:
            raise ConfigError(
                f"{table} has no primary key", hint='say which columns: key = ["id"], or mode = "insert"'
            )
        if missing := [one for one in self._key if one not in self._columns]:
            raise ConfigError(f"{table} has no column {missing[0]}, which is part of the key", hint="mend key")

    def _create(self, table: str) -> None:
        topic = self.inlet_topics()[0]
        columns = self.decoder(topic).columns
        if not columns:
            raise ConnectorError(f"{topic} has no schema, by which {table} could be made", hint="make the table")
        said = [f"{identifier(name, one=True)} {_type_of(kind)}" for name, kind in columns]
        key = self.job.option("key")
        if key:
            said.append(f"PRIMARY KEY ({', '.join(identifier(one, one=True) for one in key)})")
        self._database.execute(f"CREATE TABLE IF NOT EXISTS {identifier(table)} ({', '.join(said)})".encode())
        self._database.commit()

    def inlet_topics(self) -> list[str]:
        return sorted(self._names)

    # --- rows ---

    def step(self) -> int:
        with one_sentence():
            return self._step()

    def _step(self) -> int:
        piece = self.take(self.job.option("batch"))
        if piece is None:
            return 0
        letters = self._write(piece)
        self.bury(letters)
        self._database.commit()
        self.done(piece)
        return max(1, len(piece.messages))

    def _write(self, piece: Piece) -> list[tuple[int, Message, str]]:
        """In a transaction that is open then. All at once; one by one if something is wrong with one of them."""
        import psycopg

        letters: list[tuple[int, Message, str]] = []
        try:
            self._move(piece)
            self._run([self._change(message) for _, message in piece.messages])
            return letters
        except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError, ConnectorError):
            self._database.rollback()
            self.forget_schemas()  # the value may be by a newer one
        self._describe()  # it may have changed, or be gone
        self._move(piece)
        for offset, message in piece.messages:
            try:
                with self._database.transaction():
                    self._run([self._change(message)])
            except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError, ConnectorError) as wrong:
                said = wrong.diag.message_primary if isinstance(wrong, psycopg.Error) else wrong.what
                what = said or str(wrong).strip()
                if isinstance(wrong, psycopg.Error) and wrong.sqlstate in _OURS:
                    self._database.rollback()
                    raise ConnectorError(f"{self.job.option('table')}: {what}", hint="mend the table") from None
                if not self.keeps_dead_letters:
                    self._database.rollback()
                    raise ConnectorError(
                        f"{piece.partition} at offset {offset}: {what}",
                        hint='mend the table, or set on_error = "dead_letter"',
                    ) from None
                letters.append((offset, message, what))
        return letters

    def _move(self, piece: Piece) -> None:
        """The position, in the transaction of its rows; ConnectorError if somebody else has moved it."""
        at = self.inlet.positions[piece.partition]
        place = (self.job.id, piece.partition.topic, piece.partition.index)
        query = """INSERT INTO weir_connect_positions AS p VALUES (%s, %s, %s, %s)
            ON CONFLICT (connector, topic, partition) DO UPDATE SET next_offset = excluded.next_offset
            WHERE p.next_offset <= %s RETURNING 1"""
        if self._database.execute(query, (*place, piece.next_offset, at)).fetchone() is None:
            raise ConnectorError(f"another runner has written {piece.partition} beyond {at}")

    def _run(self, changes: Sequence[Change]) -> None:
        """In their order; neighbours that are alike go together."""
        with self._database.cursor() as cursor:
            at = 0
            while at < len(changes):
                query, until = changes[at][0], at
                while until < len(changes) and changes[until][0] == query:
                    until += 1
                cursor.executemany(query.encode(), [values for _, values in changes[at:until]])
                at = until

    def _change(self, message: Message) -> Change:
        table = in_query(identifier(self.job.option("table")))
        if message.value is None:
            return self._delete(table, message)
        row = self.decoder(message.topic).row(message)
        extra = [name for name in row if name not in self._columns]
        if extra and not self.job.option("ignore_extra"):
            raise ConnectorError(
                f"{self.job.option('table')} has no column {extra[0]}", hint="add it, or set ignore_extra = true"
            )
        names = [name for name in row if name in self._columns]
        if not names:
            raise ConnectorError("a message has none of the table's columns")
        columns = ", ".join(column_name(name) for name in names)
        places = ", ".join("%s" for _ in names)
        # What messages say goes before numbers that the table would give by itself.
        query = f"INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE VALUES ({places})"
        if self.job.option("mode") == "upsert":
            missing = [name for name in self._key if row.get(name) is None]
            if missing:
                raise ConnectorError(f"a message has no {missing[0]}, which is part of the key")
            key = ", ".join(column_name(name) for name in self._key)
            rest = [column_name(name) for name in names if name not in self._key]
            sets = ", ".join(f"{name} = excluded.{name}" for name in rest)
            query += f" ON CONFLICT ({key}) DO {f'UPDATE SET {sets}' if sets else 'NOTHING'}"
        return query, [_value(row[name], self._columns[name]) for name in names]

    def _delete(self, table: str, message: Message) -> Change:
        if not self.job.option("deletes") or not self._key:
            return "SELECT 1", ()
        key: Mapping[str, Any] = key_row(None if message.key is None else bytes(message.key), self._key)
        where = " AND ".join(f"{column_name(name)} = %s" for name in self._key)
        return f"DELETE FROM {table} WHERE {where}", [_value(key[name], self._columns[name]) for name in self._key]


def _value(value: Any, kind: str) -> Any:
    """As psycopg gives it to a column of this type. A text takes whatever type the column has."""
    if isinstance(value, str) and kind.endswith("[]") and value.startswith("["):
        return _array(json.loads(value))  # as a source of PostgreSQL writes arrays
    if isinstance(value, int) and kind.startswith(("timestamp", "date")):
        return text_of(value, kind) or value
    if kind in ("json", "jsonb") and not isinstance(value, str):
        from psycopg.types.json import Jsonb

        return None if value is None else Jsonb(value)
    if isinstance(value, dict | list):
        from psycopg.types.json import Jsonb

        return value if kind.endswith("[]") else Jsonb(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and kind.startswith(("text", "character")):
        return str(value)
    return value


def _array(value: Any) -> str:
    """As PostgreSQL writes one: a text, which takes the type that the column has."""
    if isinstance(value, list):
        return "{" + ",".join(map(_array, value)) + "}"
    if value is None:
        return "NULL"
    text = value if isinstance(value, str) else json.dumps(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _type_of(kind: Any) -> str:
    shape = kind.get("logicalType") or kind.get("type") if isinstance(kind, dict) else kind
    if shape in ("record", "map", "array") or isinstance(shape, list):
        return "jsonb"
    return _TYPES.get(str(shape), "text")


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
