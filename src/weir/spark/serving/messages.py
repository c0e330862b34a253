"""What `weir sql` and its server say to each other, and how it is framed: a length of four bytes, then JSON."""

import socket
import struct
from typing import Any, TypeVar

from msgspec import DecodeError, Raw, Struct, json

from weir.model.errors import WireError

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
