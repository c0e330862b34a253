"""Which topics are in the lake, and where their tables lie: properties of their namespace, in Weir's metadata.

`lake` is for all topics of the namespace, `lake.NAME` for one of them and goes before it; each is written whole,
so that two people who change different topics do not undo each other's change.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from weir.client.admin import join, namespace_path, topic_path
from weir.client.blocking import Access, ask_each, ask_v2
from weir.model.errors import (
    BrokerError,
    ConfigError,
    NotAuthenticatedError,
    NotAuthorisedError,
    WeirError,
    WireError,
)
from weir.model.topics import NamespaceName, TopicName

_ALL, _ONE, _OFF = "lake", "lake.", "off"
#: Whose tables these are, for ever: two Weirs that share a catalog must not take each other's for their own.
_OWNER = "lake-owner"
_CATALOGS = ("sqlite:///", "postgresql://", "http://", "https://")
#: Words that a secret's option has in its name: options can be read by whoever administers the namespace.
_SECRET = ("secret", "password", "token", "credential", "access-key", "account-key")


@dataclass(frozen=True, slots=True)
class Definition:
    """Where a topic's table lies. `catalog`: its address (`sqlite:///`, `postgresql://`, `http://`)."""

    to: str
    catalog: str
    #: Of the catalog and of the store, by pyiceberg's names; no secrets.
    options: Mapping[str, str] = field(default_factory=dict)
    #: Rows older than this leave the table; None: never.
    keep_ms: int | None = None
    #: Ledgers whose messages are in the table, and that are older than this, go; brokers read copies of them
    #: beside the tables (docs/lake.md). None: they stay for as long as retention says.
    tiered_after_ms: int | None = None
    #: The namespace's own; not a part of what is said.
    owner: str = ""

    def text(self) -> str:
        """As it is kept."""
        said: dict[str, object] = {"to": self.to, "catalog": self.catalog}
        if self.options:
            said["options"] = dict(self.options)
        if self.keep_ms is not None:
            said["keepMs"] = self.keep_ms
        if self.tiered_after_ms is not None:
            said["tieredAfterMs"] = self.tiered_after_ms
        return json.dumps(said, sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> "Definition":
        try:
            said = json.loads(text)
            return cls(
                said["to"], said["catalog"], said.get("options", {}), said.get("keepMs"), said.get("tieredAfterMs")
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise WireError(f"property lake is {text[:80]!r}", hint="set it with weir lake on") from None

    def __hash__(self) -> int:
        return hash(self.text())


@dataclass(frozen=True, slots=True)
class NamespaceLake:
    """What a namespace says of the lake."""

    namespace: NamespaceName
    every: Definition | None
    #: By the topic's local name; None: not this one.
    topics: Mapping[str, Definition | None]

    def of(self, topic: TopicName) -> Definition | None:
        """Where the topic's table lies; None if it has none."""
        return self.topics.get(topic.local, self.every)


def where(to: str | None, data: str) -> str:
    """The URL that `--to` means: as given, or the folder `lake` beside the broker's data if that is here."""
    if to is None:
        if not Path(data).is_dir():
            raise ConfigError("the broker's data is not on this machine", hint="say where with --to URL")
        to = str(Path(data) / "lake")
    if any(letter in to for letter in "#?"):
        raise ConfigError(f"{to} has a # or a ?, which ends a URL's path", hint="name a place without them")
    scheme = urlsplit(to).scheme
    if not scheme:
        return f"file://{Path(to).absolute()}"  # not quoted: pyiceberg takes it as it is
    if scheme not in ("file", "s3", "s3a"):
        raise ConfigError(
            f"{to} is of a kind that is not known", hint="write a folder, file:///... or s3://bucket/..."
        )
    if scheme == "file" and urlsplit(to).netloc:
        raise ConfigError(f"{to} names a machine, not a folder", hint="write file:///folder, with three slashes")
    if scheme != "file" and not urlsplit(to).netloc:
        raise ConfigError(f"{to} names no bucket", hint="write s3://bucket/path")
    return to.rstrip("/")


def catalog_of(catalog: str | None, to: str, data: str) -> str:
    """The address of the catalog: as given, or a file of SQLite's beside the tables, or beside the data."""
    if catalog is not None:
        if urlsplit(catalog).password:
            raise ConfigError(
                "the catalog's address has a password, which others can read",
                hint="leave it out, and set PGPASSWORD where weir lake runs",
            )
        if not catalog.startswith(_CATALOGS):
            raise ConfigError(
                f"{catalog} is a catalog of a kind that is not known",
                hint="write sqlite:///FILE, postgresql://user@host/db, or http(s)://... of a REST catalog",
            )
        return catalog
    if to.startswith("file:"):
        return f"sqlite:///{urlsplit(to).path}/catalog.db"
    if not Path(data).is_dir():
        raise ConfigError("the broker's data is not on this machine", hint="name a catalog with --catalog URL")
    return f"sqlite:///{Path(data).absolute()}/lake/catalog.db"


def check_options(options: Mapping[str, str]) -> None:
    """ConfigError if one is a secret."""
    for name in options:
        if any(word in name.lower() for word in _SECRET):
            raise ConfigError(
                f"{name} is a secret, and others could read it",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY where weir lake runs",
            )


def turn_on(access: Access, namespace: NamespaceName, topic: str | None, wanted: Definition) -> None:
    name = _ALL if topic is None else f"{_ONE}{topic}"
    told = ask_v2(access, "GET", namespace_path(namespace, "properties")) or {}
    owner = {} if _OWNER in told else {_OWNER: uuid4().hex}
    ask_v2(access, "PUT", namespace_path(namespace, "properties"), {name: wanted.text()} | owner)


def turn_off(access: Access, namespace: NamespaceName, topic: str | None) -> bool:
    """Whether it was on. What is in tables stays there."""
    now = namespace_lake(access, namespace)
    if topic is None:
        _remove(access, namespace, _ALL)
        return now.every is not None
    if now.every is not None:
        ask_v2(access, "PUT", namespace_path(namespace, "properties"), {f"{_ONE}{topic}": _OFF})
    elif topic in now.topics:
        _remove(access, namespace, f"{_ONE}{topic}")
    return now.topics.get(topic, now.every) is not None


def _remove(access: Access, namespace: NamespaceName, name: str) -> None:
    ask_v2(access, "DELETE", namespace_path(namespace, "property", name))


def namespace_lake(access: Access, namespace: NamespaceName) -> NamespaceLake:
    return _said(namespace, ask_v2(access, "GET", namespace_path(namespace, "properties")) or {})


def _said(namespace: NamespaceName, told: Mapping[str, str]) -> NamespaceLake:
    said = {
        name: None if text == _OFF else replace(Definition.parse(text), owner=told.get(_OWNER, ""))
        for name, text in told.items()
        if name == _ALL or name.startswith(_ONE)
    }
    topics = {name.removeprefix(_ONE): one for name, one in said.items() if name != _ALL}
    return NamespaceLake(namespace, said.get(_ALL), topics)


def whole_lake(access: Access) -> dict[NamespaceName, NamespaceLake]:
    """Of every namespace that this user administers and that says something of the lake."""
    tenants = ask_v2(access, "GET", "tenants")
    listed = [_given(one) for one in ask_each(access, [join("namespaces", tenant) for tenant in tenants])]
    names = [NamespaceName.parse(name) for some in listed for name in some]
    found = {}
    told = ask_each(access, [namespace_path(name, "properties") for name in names])
    for name, properties in zip(names, told, strict=True):
        if isinstance(properties, NotAuthorisedError | NotAuthenticatedError | BrokerError):
            continue  # or it was deleted meanwhile
        one = _said(name, _given(properties) or {})
        if one.every is not None or one.topics:
            found[name] = one
    return found


def topics_of(access: Access, namespaces: Sequence[NamespaceName]) -> list[TopicName]:
    """All topics of these namespaces, whatever letters their names have."""
    found: dict[TopicName, None] = {}
    for listed in ask_each(access, [namespace_path(name, "topics") for name in namespaces]):
        if not isinstance(listed, BrokerError):  # the namespace was deleted meanwhile
            found |= dict.fromkeys(name.base for name in map(TopicName.parse, _given(listed)) if name.persistent)
    return list(found)


def _given(answer: Any) -> Any:
    if isinstance(answer, WeirError):
        raise answer
    return answer


def tiered_parts(access: Access, topics: Sequence[TopicName]) -> dict[TopicName, dict[int, dict[str, Any]]]:
    """Of each topic by partition, what brokers read from the lake because its ledgers are gone."""
    counts = ask_each(access, [topic_path(topic, "partitions") for topic in topics])
    kinds = ["partitioned-stats" if _told(one).get("partitions") else "stats" for one in counts]
    stats = ask_each(access, [topic_path(topic, kind) for topic, kind in zip(topics, kinds, strict=True)])
    found = {}
    for topic, kind, told in zip(topics, kinds, map(_told, stats), strict=True):
        parts = {str(topic): told} if kind == "stats" else told.get("partitions") or {}
        lakes = {TopicName.parse(name).partition or 0: part.get("lake") for name, part in parts.items()}
        found[topic] = {partition: lake for partition, lake in lakes.items() if lake}
    return found


def _told(answer: Any) -> dict[str, Any]:
    """Of a topic that was deleted meanwhile, nothing."""
    return answer if isinstance(answer, dict) else {}
