"""The kinds of values that a setting can have: how people write them, how they are shown, what they become.

A value comes as text (from `--set` or the environment) or as what TOML makes of it; both end as the same typed
value, or as a ConfigError that says how to write it.

The table of settings, read off the tree of dataclasses that holds them.

A field of the tree says everything about its key in one place: kind, default, one line of explanation, unit,
whether it is secret. `weir config`, the loader and the documentation all come from here.

When a journal is synced, as people write it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from weir.model.errors import ConfigError
from weir.server.addresses import Address, parse_address
from weir.wire.entry import MAX_MESSAGE_BYTES


def parse_sync(text: str) -> float | None:
    """The journal's sync interval in seconds; None for `always`."""
    policy, colon, number = text.partition(":")
    if text == "always":
        return None
    if policy == "periodic" and colon and number.isascii() and number.isdigit() and int(number) > 0:
        return int(number) / 1000
    raise ConfigError(f"{text!r} is no sync policy", hint="write always, or periodic:MILLISECONDS")


def show_sync(interval_s: float | None) -> str:
    """The same in writing."""
    return "always" if interval_s is None else f"periodic:{interval_s * 1000:g}"


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


_MARK = "weir.setting"


@dataclass(frozen=True, slots=True)
class Key:
    """One setting."""

    name: str
    kind: SettingType[Any]
    default: Any
    doc: str
    secret: bool

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return "WEIR_" + self.name.replace(".", "_").upper()

    def parse(self, raw: object) -> Any:
        """The value of what somebody wrote; ConfigError, which does not show a secret."""
        try:
            return self.kind.parse(self.name, raw)
        except ConfigError as wrong:
            if self.secret:
                raise ConfigError(f"this is no value for {self.name}", hint=wrong.hint) from None
            raise

    def show(self, value: Any) -> str:
        """The value as people would write it; a secret is not shown."""
        text = self.kind.show(value)
        return "(set)" if self.secret and text else text


@dataclass(frozen=True, slots=True)
class _About:
    kind: SettingType[Any]
    doc: str
    secret: bool


def setting(kind: SettingType[T], default: T, doc: str, *, secret: bool = False) -> T:
    """A field of the tree that is a setting."""
    return field(default=default, metadata={_MARK: _About(kind, doc, secret)})


def keys_of(tree: type[Any]) -> dict[str, Key]:
    """Every setting of the tree by its full name, in the order of the fields."""
    return {row.name: row for row in _rows(tree, "")}


def _rows(tree: type[Any], prefix: str) -> Iterator[Key]:
    for part in fields(tree):
        name = prefix + part.name
        about = part.metadata.get(_MARK)
        if isinstance(about, _About):
            yield Key(name, about.kind, part.default, about.doc, about.secret)
        else:
            yield from _rows(_section(part), f"{name}.")


def _section(part: "Field[Any]") -> type[Any]:
    section: object = part.default_factory
    if not isinstance(section, type) or not is_dataclass(section):
        raise TypeError(f"{part.name} is neither a setting nor a section")
    return section


def build(tree: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """The tree with these values; what is not named keeps its default."""
    made = {}
    for part in fields(tree):  # type: ignore[arg-type]
        name = prefix + part.name
        if _MARK in part.metadata:
            if name in values:
                made[part.name] = values[name]
        else:
            made[part.name] = build(_section(part), values, f"{name}.")
    return tree(**made)


def find_key(keys: Mapping[str, Key], name: str) -> Key:
    """The key of this name, or a ConfigError that names the nearest one."""
    if name in keys:
        return keys[name]
    raise ConfigError(f"there is no setting {name!r}", hint=nearest(name, list(keys)))


def nearest(name: str, names: list[str]) -> str:
    """A hint: what may have been meant."""
    found = get_close_matches(name, names, n=1, cutoff=0.5)
    if not found:  # perhaps the section is wrong or missing, and the last part right
        last = name.rpartition(".")[2]
        found = [other for other in names if other.rpartition(".")[2] == last][:1]
    return f"did you mean {found[0]}?" if found else "weir config show lists all settings"
