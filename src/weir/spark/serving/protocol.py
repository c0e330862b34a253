"""What `weir sql` and its server say to each other, and how it is framed: a length of four bytes, then JSON.

Values of a result as programs have them (JSON), and as people read them.

Where a user's server is found: a folder that nobody else may enter, and a socket for each set of settings.

What the programs below an error said, Java's words among them.
"""

import base64
import hashlib
import json as json_of_json
import math
import os
import socket
import stat
import struct
import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import DecodeError, Raw, Struct, json

from weir.model.errors import SparkSetupError, WireError

T = TypeVar("T")


class BelowError(Exception):
    """What a server said of the programs below it."""


_LENGTH = struct.Struct(">I")
#: A part of a result is at most so many rows; a frame may be this long, since a row may be long.
ROWS_PER_PART = 1_000
_MAX_FRAME = 1 << 30


# --- what a command asks ----------------------------------------------------------------------------------------


class Hello(Struct, tag="hello"):
    """Which Weir it is about, as whom, and how results are wanted. `fingerprint`: the code that asks."""

    fingerprint: str
    url: str
    token: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    kafka: str | None = None
    limit: int | None = None
    start: str = "latest"
    as_json: bool = False
    #: Where a runner that is started here keeps its checkpoints; and whether none is to be started.
    checkpoints: str | None = None
    no_runner: bool = False
    #: Where the command was started: paths in statements are from there.
    folder: str = ""


class Run(Struct, tag="run"):
    """Do all statements of these texts."""

    texts: list[str]


class Names(Struct, tag="names"):
    """For completion: the columns of a table, or (without one) the tables."""

    table: list[str] | None = None


class Cancel(Struct, tag="cancel"):
    """End what runs now."""


class AskStatus(Struct, tag="status"):
    pass


class Stop(Struct, tag="stop"):
    """End; `when_unused`: only if nobody uses it."""

    when_unused: bool = False


Request = Hello | Run | Names | Cancel | AskStatus | Stop


# --- what it is told --------------------------------------------------------------------------------------------


class Welcome(Struct, tag="welcome"):
    pid: int


class Starting(Struct, tag="starting"):
    """Spark starts, or has: what takes long is said."""

    over: bool = False


class Head(Struct, tag="head"):
    """A result begins. `live`: rows as they come; `watched`: the same as before, again."""

    columns: list[str]
    live: bool = False
    watched: bool = False


class Part(Struct, tag="part"):
    """Some rows: objects of JSON, or lists of cells, as the command wanted it."""

    rows: list[Raw]


class Tail(Struct, tag="tail"):
    """A result ends. `more`: there are more rows than were asked for."""

    rows: int
    took_ms: int
    more: bool = False


class Word(Struct, tag="word"):
    """Something was done."""

    what: str
    fields: dict[str, Any]
    took_ms: int = 0


class Failed(Struct, tag="failed"):
    """A sentence; what to do; and what the programs below said, for those who look for a fault. `misused`: the
    options are wrong."""

    what: str
    hint: str = ""
    trace: str = ""
    misused: bool = False


class Named(Struct, tag="named"):
    names: list[str]


class Ended(Struct, tag="ended"):
    """All of a request is done, or was cancelled; `live`: in something that only ends so."""

    cancelled: bool = False
    live: bool = False


class Status(Struct, tag="told"):
    """How the server is. `spark`: whether Spark runs."""

    pid: int
    version: str
    fingerprint: str
    since_ms: int
    clients: int
    statements: int
    spark: bool
    idle_s: float
    ends_after_s: float
    log: str


Answer = Welcome | Starting | Head | Part | Tail | Word | Failed | Named | Ended | Status

_ENCODER = json.Encoder()
_REQUESTS: "json.Decoder[Request]" = json.Decoder(Request)
_ANSWERS: "json.Decoder[Answer]" = json.Decoder(Answer)


def send(connection: socket.socket, message: Request | Answer) -> None:
    body = _ENCODER.encode(message)
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive_request(connection: socket.socket) -> Request | None:
    """None if the other side has gone."""
    return _receive(connection, _REQUESTS)


def receive_answer(connection: socket.socket) -> Answer | None:
    """None if the other side has gone."""
    return _receive(connection, _ANSWERS)


def _receive(connection: socket.socket, decoder: "json.Decoder[T]") -> T | None:
    head = _exactly(connection, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _MAX_FRAME:
        raise WireError(f"a frame of {length} bytes is none of weir sql's")
    body = _exactly(connection, length)
    if body is None:
        return None
    try:
        return decoder.decode(body)
    except DecodeError as bad:  # of another version, or of another program
        raise WireError(f"a frame is none of weir sql's: {bad}") from None


def _exactly(connection: socket.socket, length: int) -> bytes | None:
    """So many bytes; None if there are no more."""
    found = bytearray()
    while len(found) < length:
        try:
            some = connection.recv(min(length - len(found), 1 << 20))
        except ConnectionError:
            return None
        if not some:
            return None
        found += some
    return bytes(found)


_PRIVATE = 0o700
#: The longest path that a Unix socket may have, with room for what a rename needs.
_LONGEST = 100
#: Whose files say whether a server runs the code that asks it.
_CODE = Path(__file__).parent.parent


def runtime_folder() -> Path:
    """SparkSetupError unless it is this user's alone: whoever may write there could pretend to be the server."""
    chosen = os.environ.get("XDG_RUNTIME_DIR")
    places = [Path(chosen) / "weir"] if chosen else []
    places.append(Path(tempfile.gettempdir()) / f"weir-{os.getuid()}")
    for place in places:
        if len(str(place)) + 24 > _LONGEST:
            continue
        try:
            place.mkdir(mode=_PRIVATE, parents=False, exist_ok=True)
            found = place.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            if stat.S_IMODE(found.st_mode) != _PRIVATE:
                place.chmod(_PRIVATE)
            return place
    raise SparkSetupError(
        f"no private folder for the server of weir sql: {', '.join(map(str, places))} cannot be it",
        hint="set XDG_RUNTIME_DIR to a folder of yours, or use --no-server",
    )


def socket_path(master: str) -> Path:
    """One server for each interpreter and each place where Spark runs; whichever Weir is asked about."""
    key = "\n".join((sys.executable, master)).encode()
    return runtime_folder() / f"sql-{hashlib.sha256(key).hexdigest()[:12]}"


def weir_version() -> str:
    for name in ("weir-broker", "weir"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def fingerprint() -> str:
    """Of the code: a server that runs other code than the command is replaced."""
    newest = max((file.stat().st_mtime_ns for file in _CODE.rglob("*.py")), default=0)
    return f"{weir_version()}-{newest:x}"


_CELLS_ENCODER = msgspec.json.Encoder(decimal_format="number")


def names_of(columns: Sequence[str]) -> list[str]:
    """Names for an object's fields: a column that is called as one before it gets a number; none is lost."""
    found: list[str] = []
    for name in columns:
        unique, number = name, 1
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def as_object(names: Sequence[str], row: Sequence[Any]) -> bytes:
    """A row as an object of JSON."""
    return _CELLS_ENCODER.encode(dict(zip(names, map(plain, row), strict=True)))


def plain(value: Any) -> Any:  # noqa: PLR0911 (a table)
    """A value of Spark's as JSON has it: numbers are numbers (those that JSON has no number for are the words NaN,
    Infinity and -Infinity), bytes base64, moments ISO 8601 in UTC, structs and maps objects."""
    match value:
        case bool() | int() | str() | None:
            return value
        case float() | Decimal():
            return value if math.isfinite(value) else _no_number(float(value))
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case datetime():
            return _moment(value)
        case date():
            return value.isoformat()
        case dict():
            return {_key(key): plain(one) for key, one in value.items()}
        case tuple() if hasattr(value, "__fields__"):  # a row of Spark's
            return dict(zip(names_of(value.__fields__), map(plain, value), strict=True))
        case list() | tuple():
            return [plain(one) for one in value]
    if hasattr(value, "toPython"):  # a variant
        return plain(value.toPython())
    return str(value)


def shown(value: Any) -> str | int:  # noqa: PLR0911 (a table)
    """The same as people read it; whole numbers stay numbers, and stand to the right."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | str():
            return value
        case float():
            return f"{value:g}" if abs(value) < 1e15 and value == round(value, 6) else repr(value)
        case bytes() | bytearray():
            return _text(bytes(value))
        case datetime():
            return value.replace(tzinfo=None).isoformat(sep=" ")
        case Decimal():
            return str(value)
    found = plain(value)
    return found if isinstance(found, str) else _CELLS_ENCODER.encode(found).decode()


def json_array(rows: Iterable[bytes]) -> bytes:
    """Objects as one array, as people can read it, too."""
    whole = b"[" + b",".join(rows) + b"]"
    return msgspec.json.format(whole, indent=2)


def _key(key: Any) -> str:
    found = plain(key)
    return found if isinstance(found, str) else json_of_json.dumps(found, default=str)


def _moment(value: datetime) -> str:
    """One without a zone is a TIMESTAMP_NTZ, and stays so."""
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _no_number(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def trace_of(wrong: BaseException) -> str:
    """What the programs below said, Java's words among them; empty if it is all said."""
    below = wrong.__cause__
    if isinstance(below, BelowError):
        return str(below)
    if below is None:
        return ""
    told = "".join(traceback.format_exception(below)).rstrip()
    # Spark's exceptions have Java's stack beside them, and do not print it.
    java = getattr(below, "_stackTrace", None)
    return f"{told}\n\nJVM stacktrace:\n{java.rstrip()}" if isinstance(java, str) and java.strip() else told
