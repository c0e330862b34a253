"""The table of settings, read off the tree of dataclasses that holds them.

A field of the tree says everything about its key in one place: kind, default, one line of explanation, unit,
whether it is secret. `weir config`, the loader and the documentation all come from here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from weir.model.errors import ConfigError
from weir.server.config.types import SettingType

T = TypeVar("T")

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
