"""The kinds of values that a setting can have: how people write them, how they are shown, what they become.

A value comes as text (from `--set` or the environment) or as what TOML makes of it; both end as the same typed
value, or as a ConfigError that says how to write it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Generic, TypeVar

from weir.model.errors import ConfigError
from weir.server.addresses import Address, parse_address
from weir.server.sync_policy import parse_sync, show_sync
from weir.wire.entry import MAX_MESSAGE_BYTES

T = TypeVar("T")

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)", re.IGNORECASE | re.ASCII)
_SIZES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)
_TIMES = {"ms": 0.001, "": 1.0, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class SettingType(Generic[T]):
    """`read` makes the value of text, a number, a truth value or a list; ValueError for what is none."""

    name: str
    how: str
    read: Callable[[object], T]
    show: Callable[[T], str] = str

    def parse(self, key: str, raw: object) -> T:
        """The value, or a ConfigError that names the key."""
        try:
            return self.read(raw)
        except ConfigError:
            hint = self.how
        except ValueError as wrong:
            hint = str(wrong) or self.how
        raise ConfigError(f"{raw!r} is no value for {key}", hint=hint)


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError
    return raw


def _whole(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise ValueError
    if isinstance(raw, str) and not re.fullmatch(r"-?\d+", raw.strip().replace("_", ""), re.ASCII):
        raise ValueError
    return int(raw)


def _count(raw: object) -> int:
    if (number := _whole(raw)) < 0:
        raise ValueError
    return number


def _bound(raw: object) -> int:
    if (number := _whole(raw)) < -1:
        raise ValueError
    return number


def _flag(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    found = {
        "true": True,
        "yes": True,
        "on": True,
        "1": True,
        "false": False,
        "no": False,
        "off": False,
        "0": False,
    }
    if not isinstance(raw, str) or raw.lower() not in found:
        raise ValueError
    return found[raw.lower()]


def _size(raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
        return raw
    found = _SIZE.fullmatch(raw.strip()) if isinstance(raw, str) else None
    if found is None:
        raise ValueError
    return round(float(found[1]) * _SIZES[found[2].lower().rstrip("b").rstrip("i")])


def _message_size(raw: object) -> int:
    size = _size(raw)
    if size > MAX_MESSAGE_BYTES:
        raise ValueError
    return size


def _bounded_size(raw: object) -> int:
    return -1 if raw in (-1, "-1") else _size(raw)


def _seconds(raw: object) -> float:
    if isinstance(raw, int | float) and not isinstance(raw, bool) and raw >= 0:
        return float(raw)
    found = _TIME.fullmatch(raw.strip().lower()) if isinstance(raw, str) else None
    if found is None or found[2] not in _TIMES:
        raise ValueError
    return float(found[1]) * _TIMES[found[2]]


def _address(raw: object) -> Address:
    return parse_address(_text(raw))


def _address_or_none(raw: object) -> Address | None:
    return None if raw == "" else _address(raw)


def _host(raw: object) -> str:
    host = _text(raw).strip()
    plain = host.removeprefix("[").removesuffix("]")
    if "://" in host or "/" in host:
        raise ValueError("write the name or address alone, without a scheme: weir.example")
    if ":" in plain and plain.count(":") == 1:
        raise ValueError("write it without a port: clients are told each listener's own")
    if plain in ("0.0.0.0", "::"):  # noqa: S104: refused, not listened on
        raise ValueError("clients cannot come to all addresses: write the one that they reach, or leave it empty")
    if any(sign.isspace() or not sign.isprintable() for sign in plain):
        raise ValueError
    return plain


def _names(raw: object) -> tuple[str, ...]:
    if isinstance(raw, str):
        raw = [part.strip() for part in raw.split(",")] if raw.strip() else []
    if not isinstance(raw, list) or not all(isinstance(part, str) and part for part in raw):
        raise ValueError
    return tuple(raw)


def show_size(size: int) -> str:
    """In the largest unit that divides it."""
    for unit, scale in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if size >= scale and size % scale == 0:
            return f"{size // scale}{unit}"
    return str(size)


def show_seconds(seconds: float) -> str:
    if seconds and seconds < 1:
        return f"{seconds * 1000:g}ms"
    for unit, scale in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= scale and seconds % scale == 0:
            return f"{seconds / scale:g}{unit}"
    return f"{seconds:g}s"


TEXT = SettingType("text", "write it as text", _text)
COUNT = SettingType("number", "write a whole number, 0 or more", _count)
BOUND = SettingType("number", "write a whole number, or -1 for no bound", _bound)
FLAG = SettingType("yes or no", "write true or false", _flag, lambda value: "true" if value else "false")
SIZE = SettingType("bytes", "write bytes, or a number with KiB, MiB or GiB, as in 64MiB", _size, show_size)
MESSAGE_SIZE = SettingType("bytes", "write bytes as in 16MiB; 128MiB at the most", _message_size, show_size)
BOUNDED_SIZE = SettingType("bytes", "write bytes as in 64MiB, or -1 for no bound", _bounded_size, show_size)
SECONDS = SettingType(
    "time", "write seconds, or a number with ms, s, min, h or d, as in 200ms", _seconds, show_seconds
)
ADDRESS = SettingType("host:port", "write host:port, for example 127.0.0.1:6650; port 0 is any free one", _address)
OPTIONAL_ADDRESS: SettingType[Address | None] = SettingType(
    "host:port",
    "write host:port, for example 127.0.0.1:6651; empty for none",
    _address_or_none,
    lambda address: "" if address is None else str(address),
)
HOST = SettingType("host", "write a host name or an address, as in weir.example; empty for none", _host)
SYNC: SettingType[float | None] = SettingType(
    "always | periodic:MS", "write always, or periodic:MILLISECONDS", lambda raw: parse_sync(_text(raw)), show_sync
)
NAMES: SettingType[tuple[str, ...]] = SettingType(
    "names", "write names with commas between them", _names, ",".join
)


def one_of(*choices: str) -> SettingType[str]:
    """One word of a few."""

    def read(raw: object) -> str:
        if raw in choices:
            return str(raw)
        near = get_close_matches(str(raw).lower(), choices, n=1, cutoff=0.5)
        raise ValueError(f"did you mean {near[0]}? it is one of {', '.join(choices)}" if near else "")

    return SettingType(" | ".join(choices), f"it is one of {', '.join(choices)}", read)
