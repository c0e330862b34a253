"""Which types of sources and sinks there are, and the options of each: files are checked against this table.

Secrets by reference: a variable or a file of the machine that runs the connector; never shown, never kept.

Spans of time and sizes as files write them: `500ms`, `5s`, `1min`, `2h`, `64MB`.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Secret:
    """`{ env = "NAME" }` or `{ file = "/path" }`."""

    kind: str
    name: str

    @classmethod
    def read(cls, where: str, value: Any) -> "Secret":
        if isinstance(value, dict) and len(value) == 1:
            kind, name = next(iter(value.items()))
            if kind in ("env", "file") and isinstance(name, str) and name:
                return cls(kind, name)
        raise ConfigError(
            f"{where} is a secret, which is not written into a definition",
            hint='name where it is: { env = "NAME" } or { file = "/path" }, on the machine that runs it',
        )

    def reveal(self) -> str:
        """ConfigError if it is not there."""
        if self.kind == "env":
            found = os.environ.get(self.name)
            if found is None:
                raise ConfigError(
                    f"the variable {self.name} is not set", hint="set it where weir connect run runs"
                )
            return found
        try:
            return Path(self.name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as failure:
            raise ConfigError(f"the secret's file cannot be read: {failure}") from None


def reveal(secret: "Secret | None") -> str | None:
    return None if secret is None else secret.reveal()


_SPANS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def parse_ms(text: str) -> int | None:
    """None if it is no span."""
    found = re.fullmatch(r"(\d+)\s*(ms|s|min|h|d)", text.strip())
    return None if found is None else int(found[1]) * _SPANS[found[2]]


def parse_bytes(text: str) -> int | None:
    """None if it is no size above zero."""
    found = re.fullmatch(r"(\d+)\s*([kmg]i?)?b?", text.strip().lower())
    size = 0 if found is None else int(found[1]) * _SIZES[found[2] or ""]
    return size or None


#: Of each kind, how it is written.
_KINDS = {
    "text": 'a text, such as "orders"',
    "number": "a number above 0",
    "flag": "true or false",
    "texts": 'a list of texts, such as ["id"]',
    "span": 'a span, such as "500ms", "5s" or "1min"',
    "size": 'a size, such as "64MB"',
    "secret": 'where a secret is: { env = "NAME" } or { file = "/path" }',
    "table": 'a table of texts, such as { X-Key = "value" }',
}


@dataclass(frozen=True, slots=True)
class Option:
    """One option: of which kind, what it means, and its default."""

    kind: str
    about: str
    default: Any = None
    needed: bool = False
    choices: tuple[str, ...] = ()

    def read(self, where: str, value: Any) -> Any:
        """As the connector has it; ConfigError if it is of another kind."""
        wrong = ConfigError(f"{where} is {value!r}", hint=f"{_KINDS[self.kind]}: {self.about}")
        found: Any
        match self.kind:
            case "text":
                found = value if isinstance(value, str) and value else None
                if found is not None and self.choices and found not in self.choices:
                    raise ConfigError(f"{where} is {value!r}", hint=f"one of {', '.join(self.choices)}")
            case "number":
                found = value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
            case "flag":
                found = value if isinstance(value, bool) else None
            case "texts":
                listed = [value] if isinstance(value, str) else value
                fine = isinstance(listed, list) and listed and all(isinstance(one, str) and one for one in listed)
                found = tuple(listed) if fine else None
            case "span":
                found = parse_ms(value) if isinstance(value, str) else None
            case "size":
                found = parse_bytes(value) if isinstance(value, str) else None
            case "secret":
                found = Secret.read(where, value)
            case "table":
                fine = isinstance(value, dict) and all(isinstance(one, str | dict) for one in value.values())
                found = {key: _word(f"{where}.{key}", one) for key, one in value.items()} if fine else None
            case _:
                raise wrong
        if found is None:
            raise wrong
        return found


def _word(where: str, value: Any) -> "str | Secret":
    return value if isinstance(value, str) else Secret.read(where, value)


def _text(
    about: str, default: str | None = None, *, needed: bool = False, choices: tuple[str, ...] = ()
) -> Option:
    return Option("text", about, default, needed, choices)


_POLL = Option("span", "how often it looks for more", 1_000)
_BATCH = Option("number", "records of one transaction at the most", 1_000)
_ENGINE = _text(
    "who does the work: light drivers, or Spark's readers and writers", "light", choices=("light", "spark")
)
_ON_ERROR = _text("what becomes of a message that cannot be written", "fail", choices=("fail", "dead_letter"))
_DEAD = _text("where dead letters go; by default NAME-DLQ")
_START = _text("where a new sink begins", "earliest", choices=("earliest", "latest"))
_STORE = {
    "path": _text("a folder, file:///... or s3://bucket/path", needed=True),
    "endpoint": _text("of an S3-compatible store; by default AWS_ENDPOINT_URL, or Amazon's"),
    "region": _text("of the store; by default AWS_REGION"),
    "access_key": Option("secret", "of the store; by default AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    "secret_key": Option("secret", "of the store"),
}
_POSTGRESQL = {
    "dsn": _text("host=... dbname=... user=..., or postgresql://user@host/db; without a password", needed=True),
    "password": Option("secret", "the user's; by default PGPASSWORD"),
}
_KAFKA = {
    "bootstrap_servers": _text("host:9092, several with commas", needed=True),
    "token": Option("secret", "of another Weir"),
    "username": _text("of SASL PLAIN"),
    "password": Option("secret", "of SASL PLAIN"),
    "tls": Option("flag", "whether to come by TLS", False),
    "ca": _text("TLS: the file of CAs to trust, PEM"),
    "certificate": _text("TLS: one's own certificate, PEM"),
    "key": _text("TLS: its key, PEM"),
}
_PULSAR = {
    "service_url": _text("pulsar://host:6650 or pulsar+ssl://...", needed=True),
    "token": Option("secret", "by which to come in"),
    "ca": _text("TLS: the file of CAs to trust, PEM"),
}
_HTTP = {
    "url": _text("of the other system", needed=True),
    "headers": Option("table", "sent with each request; a value may be { env = ... }", {}),
    "token": Option("secret", "sent as Authorization: Bearer"),
    "timeout": Option("span", "how long an answer may take", 30_000),
    "ca": _text("TLS: the file of CAs to trust, PEM"),
}
_VALUES = _text("how values are written", "json", choices=("json", "avro"))

#: Options that say which system and data positions are of. Positions of others would be taken for theirs, so an
#: update cannot change these. (The positions of a Kafka source name the topics' ids, which tell another cluster.)
PLACES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("source", "postgresql"): ("dsn", "table", "query", "column"),
    ("source", "files"): ("path", "endpoint", "format", "engine"),
    ("source", "http"): ("url", "records", "cursor", "cursor_field", "parameter"),
    ("source", "kafka"): ("start",),
    ("source", "pulsar"): ("service_url", "start"),
    ("sink", "postgresql"): ("dsn", "table", "start"),
    ("sink", "files"): ("path", "endpoint", "format", "engine", "start"),
    ("sink", "http"): ("start",),
    ("sink", "kafka"): ("bootstrap_servers", "start"),
    ("sink", "pulsar"): ("service_url", "start"),
}

TYPES: Mapping[str, Mapping[str, Mapping[str, Option]]] = {
    "source": {
        "postgresql": {
            **_POSTGRESQL,
            "table": _text("the table, or schema.table"),
            "query": _text("or a query, whose rows are read instead"),
            "column": _text("the column that grows: an id, or the time of the last change", needed=True),
            "key": Option("texts", "columns of the key; by default those of the primary key"),
            "columns": Option("texts", "which columns; by default all"),
            "values": _VALUES,
            "numeric": _text("how numeric is written", "string", choices=("string", "double")),
            "wait_for": _text(
                "whose open transactions are waited for, so that no late row is missed",
                "auto",
                choices=("auto", "table", "transactions", "none"),
            ),
            "poll": _POLL,
            "batch": _BATCH,
        },
        "files": {
            **_STORE,
            "format": _text("of the files", "json", choices=("json", "csv", "parquet", "text")),
            "pattern": _text("which files, as a shell writes it", "*"),
            "key": Option("texts", "fields of the key"),
            "values": _VALUES,
            "delimiter": _text("of CSV", ","),
            "settle": Option("span", "a file is read when it has not changed for so long", 1_000),
            "engine": _ENGINE,
            "poll": _POLL,
            "batch": _BATCH,
        },
        "http": {
            **_HTTP,
            "records": _text(
                "where the list of records is in the answer, as a.b; by default the answer is the list"
            ),
            "cursor": _text("where the next cursor is in the answer, as a.b"),
            "cursor_field": _text("or the field of the records whose last value is the next cursor"),
            "parameter": _text("the parameter by which the cursor is sent", "cursor"),
            "start": _text("the first cursor"),
            "key": Option("texts", "fields of the key"),
            "values": _VALUES,
            "poll": _POLL,
        },
        "kafka": {
            **_KAFKA,
            "topics": Option("texts", "which topics", needed=True),
            "prefix": _text("before the names that they have here", ""),
            "start": _text("where a new one begins", "earliest", choices=("earliest", "latest")),
            "batch": _BATCH,
        },
        "pulsar": {
            **_PULSAR,
            "topics": Option("texts", "which topics", needed=True),
            "prefix": _text("before the names that they have here", ""),
            "start": _text("where a new one begins", "earliest", choices=("earliest", "latest")),
            "batch": _BATCH,
        },
    },
    "sink": {
        "postgresql": {
            **_POSTGRESQL,
            "table": _text("the table, or schema.table", needed=True),
            "mode": _text("rows are added, or replace those of their key", "upsert", choices=("insert", "upsert")),
            "key": Option("texts", "columns of the key; by default those of the primary key"),
            "create": Option("flag", "whether to make the table, by the topic's schema", False),
            "deletes": Option("flag", "whether a message without a value deletes its key's row", True),
            "ignore_extra": Option("flag", "whether fields that the table has no column for are left out", False),
            "on_error": _ON_ERROR,
            "dead_letter_topic": _DEAD,
            "start": _START,
            "batch": _BATCH,
        },
        "files": {
            **_STORE,
            "format": _text("of the files", "json", choices=("json", "csv", "parquet")),
            "columns": _text("only the values, or key, offset and time, too", "value", choices=("value", "all")),
            "max_size": Option("size", "a file is written when so much waits", 64_000_000),
            "max_age": Option("span", "or when something waits for so long", 60_000),
            "max_records": Option("number", "or when so many wait", 100_000),
            "engine": _ENGINE,
            "on_error": _ON_ERROR,
            "dead_letter_topic": _DEAD,
            "start": _START,
        },
        "http": {
            **_HTTP,
            "method": _text("of the requests", "POST", choices=("POST", "PUT")),
            "batch": Option("number", "records of one request at the most", 100),
            "retries": Option("number", "how often a request is tried again at once", 5),
            "on_error": _ON_ERROR,
            "dead_letter_topic": _DEAD,
            "start": _START,
        },
        "kafka": {
            **_KAFKA,
            "prefix": _text("before the names that they have there", ""),
            "start": _START,
            "batch": _BATCH,
        },
        "pulsar": {
            **_PULSAR,
            "prefix": _text("before the names that they have there", "persistent://public/default/"),
            "start": _START,
            "batch": _BATCH,
        },
    },
}
