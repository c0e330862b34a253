"""Messages as rows of PostgreSQL, exactly once: the position is a row of the same transaction.

Rows are added, or replace those of their key; a message without a value deletes its key's row.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from weir.client.kafka.cluster import Partition
from weir.connect.inlet import Piece
from weir.connect.postgresql import (
    column_name,
    columns_of,
    connect,
    identifier,
    in_query,
    one_sentence,
    primary_key,
)
from weir.connect.sinks.base import Sink
from weir.connect.task import Job, Message
from weir.connect.values import key_row
from weir.model.errors import ConfigError, ConnectorError

if TYPE_CHECKING:
    import psycopg

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
        from weir.connect.postgresql_types import text_of

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
