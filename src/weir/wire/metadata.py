"""Metadata values as bytes: JSON with a version, readable by people and by later releases.

Fields of values in the metadata store, looked at before they are taken; TypeError for anything else.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from weir.model.errors import (
    ChecksumError,
    InvalidNameError,
    InvariantError,
    NotAllowedError,
    UnknownVersionError,
    WireError,
)
from weir.model.ids import BookieId, EntryId, LedgerId
from weir.model.ledger import Fragment, LedgerMetadata, LedgerState, Quorum
from weir.wire.checksum import crc32c

_VERSION = 1


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """How to reach a bookie, and where it stands (`rack` is any label: a rack, a zone, a room)."""

    bookie_id: BookieId
    host: str
    port: int
    rack: str = ""
    #: Why it takes no entries, if it does not.
    why: str = ""


@dataclass(frozen=True, slots=True)
class Cookie:
    """The disk that a bookie id was given: made when the disk was formatted, never changed."""

    bookie_id: BookieId
    instance: str


def encode_ledger(ledger: LedgerMetadata) -> bytes:
    return dump_fields(
        {
            "ledger": ledger.ledger_id,
            "quorum": [ledger.quorum.ensemble, ledger.quorum.write, ledger.quorum.ack],
            "fragments": [[f.first_entry, list(f.bookies)] for f in ledger.fragments],
            "state": ledger.state.value,
            "last_entry": ledger.last_entry,
            "length": ledger.length,
            "created_ms": ledger.created_ms,
        }
    )


def decode_ledger(data: bytes) -> LedgerMetadata:
    fields = load_fields(data, "ledger metadata")
    try:
        ensemble, write, ack = (int(n) for n in fields["quorum"])
        ledger = LedgerMetadata(
            ledger_id=LedgerId(int(fields["ledger"])),
            quorum=Quorum(ensemble, write, ack),
            fragments=tuple(
                Fragment(EntryId(int(first)), tuple(BookieId(str(b)) for b in bookies))
                for first, bookies in fields["fragments"]
            ),
            state=LedgerState(fields["state"]),
            last_entry=EntryId(int(fields["last_entry"])),
            length=int(fields["length"]),
            created_ms=int(fields["created_ms"]),
        )
    except (KeyError, ValueError, TypeError, OverflowError, InvariantError) as bad:
        raise WireError(f"ledger metadata is malformed: {bad!r}") from bad
    if not ledger.fragments or any(len(f.bookies) != ensemble for f in ledger.fragments):
        raise WireError(f"ledger metadata names no ensemble of {ensemble} bookies")
    return ledger


def encode_bookie_info(info: BookieInfo) -> bytes:
    why = {"why": info.why} if info.why else {}
    return dump_fields({"bookie": info.bookie_id, "host": info.host, "port": info.port, "rack": info.rack, **why})


def decode_bookie_info(data: bytes) -> BookieInfo:
    fields = load_fields(data, "bookie registration")
    try:
        return BookieInfo(
            BookieId(str(fields["bookie"])),
            str(fields["host"]),
            int(fields["port"]),
            str(fields["rack"]),
            str(fields.get("why", "")),
        )
    except (KeyError, ValueError, TypeError, OverflowError) as bad:
        raise WireError(f"bookie registration is malformed: {bad!r}") from bad


def encode_cookie(cookie: Cookie) -> bytes:
    return dump_fields({"bookie": cookie.bookie_id, "instance": cookie.instance, "crc": _cookie_crc(cookie)})


def decode_cookie(data: bytes) -> Cookie:
    """Cookies of Weir 0.1 have no checksum."""
    fields = load_fields(data, "cookie")
    try:
        cookie = Cookie(BookieId(str(fields["bookie"])), str(fields["instance"]))
    except (KeyError, ValueError, TypeError) as bad:
        raise WireError(f"cookie is malformed: {bad!r}") from bad
    if fields.get("crc", _cookie_crc(cookie)) != _cookie_crc(cookie):
        raise ChecksumError("the cookie's checksum does not match")
    return cookie


def _cookie_crc(cookie: Cookie) -> int:
    return crc32c(json.dumps([cookie.bookie_id, cookie.instance]).encode())


def dump_fields(fields: dict[str, Any]) -> bytes:
    """A metadata value: these fields and the version."""
    return json.dumps({"v": _VERSION, **fields}, separators=(",", ":")).encode()


def load_fields(data: bytes, what: str) -> dict[str, Any]:
    """The fields of a metadata value of a known version; `what` it is, for the error."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as bad:
        raise WireError(f"{what} is not JSON: {bad}") from bad
    if not isinstance(fields, dict):
        raise WireError(f"{what} is not a JSON object")
    if fields.get("v") != _VERSION:
        raise UnknownVersionError(
            f"{what} has version {fields.get('v')!r}", hint="written by a newer Weir? upgrade this one"
        )
    return fields


T = TypeVar("T")

_BAD = (KeyError, ValueError, TypeError, AttributeError, OverflowError, InvalidNameError, NotAllowedError)


def decode(data: bytes, what: str, build: Callable[[dict[str, Any]], T]) -> T:
    """What is built of the fields; WireError if it cannot be."""
    found = load_fields(data, what)
    try:
        return build(found)
    except _BAD as bad:
        raise WireError(f"{what} is malformed: {bad!r}") from bad


def text(item: object) -> str:
    if not isinstance(item, str):
        raise TypeError(f"{type(item).__name__} instead of text")
    return item


def number(item: object) -> int:
    if not isinstance(item, int) or isinstance(item, bool):
        raise TypeError(f"{type(item).__name__} instead of a whole number")
    return item


def flag(item: object) -> bool:
    if not isinstance(item, bool):
        raise TypeError(f"{type(item).__name__} instead of a flag")
    return item


def each(items: object) -> list[Any]:
    if not isinstance(items, list):
        raise TypeError(f"{type(items).__name__} instead of a list")
    return items


def optional_text(item: object) -> str | None:
    return None if item is None else text(item)


def optional_number(item: object) -> int | None:
    return None if item is None else number(item)
