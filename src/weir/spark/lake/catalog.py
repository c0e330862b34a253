"""Which topics are in the lake, and where their tables lie: what their namespaces select of the catalogs that
superusers define, as the admin REST tells it.

`lake` is for all topics of the namespace, `lake.NAME` for one of them and goes before it; each is written whole,
so that two people who change different topics do not undo each other's change.

Catalogs and stores of tables, opened as their definitions say; secrets come from the environment.

Nothing here asks the network for what was not named: an S3 client that is not told its region would ask for it.

What an export failed of, in one line.
"""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from weir.client.admin import Access, ask, ask_each, ask_v2, join, namespace_path, topic_path
from weir.model.diagnosis import install_command
from weir.model.errors import BrokerError, ConfigError, InvalidNameError, LakeError, WeirError, WireError
from weir.model.lake import (
    DEFAULT_CATALOG,
    LAKE_OFF,
    LAKE_PROPERTY,
    LAKE_TOPIC_PREFIX,
    LakeCatalog,
    LakeSelection,
    check_address,
    check_catalog,
    check_options,
    check_store,
    is_internal,
)
from weir.model.topics import NamespaceName, TopicName

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


log = logging.getLogger(__name__)

_CATALOGS, _LAKE = "lake-catalogs", "lake"
_HINT = "a superuser defines the catalog (weir lake catalogs set), then: weir lake on --catalog NAME"
_NO_NAME = re.compile(r"[^A-Za-z0-9]+")
_MAX_NAME = 60
#: Definitions that are ignored, and are in the log.
_reported: dict[tuple[NamespaceName, str, str], None] = {}


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
    #: beside the tables (docs/reference/lake.md). None: they stay for as long as retention says.
    tiered_after_ms: int | None = None
    #: The namespace's own; not a part of what is said.
    owner: str = ""
    #: The catalog's, as a superuser defined it; "" if it is not defined yet.
    name: str = field(default="", compare=False)

    def text(self) -> str:
        """All of it, as JSON."""
        said: dict[str, object] = {"to": self.to, "catalog": self.catalog}
        if self.options:
            said["options"] = dict(self.options)
        if self.keep_ms is not None:
            said["keepMs"] = self.keep_ms
        if self.tiered_after_ms is not None:
            said["tieredAfterMs"] = self.tiered_after_ms
        return json.dumps(said, sort_keys=True)

    def __hash__(self) -> int:
        return hash(self.text())

    def check(self) -> None:
        """LakeError unless a process may open it: addresses of known kinds, and options that are on the list."""
        try:
            check_catalog(LakeCatalog(self.name or DEFAULT_CATALOG, self.to, self.catalog, self.options))
        except (ConfigError, InvalidNameError) as wrong:
            raise LakeError(f"the lake's catalog is refused: {wrong.what}", hint=wrong.hint) from None


@dataclass(frozen=True, slots=True)
class NamespaceLake:
    """What a namespace says of the lake."""

    namespace: NamespaceName
    every: Definition | None
    #: By the topic's local name; None: not this one.
    topics: Mapping[str, Definition | None]
    #: Why definitions are ignored, by the topic's local name; "" is that of all topics.
    ignored: Mapping[str, str] = field(default_factory=dict)
    #: Log topics of functions, by their local names: internal, as topics of functions and connectors are.
    logs: frozenset[str] = frozenset()

    def of(self, topic: TopicName) -> Definition | None:
        """Where the topic's table lies; None if it has none, or its definition is ignored."""
        return None if topic.local in self.ignored else self.topics.get(topic.local, self._usual(topic))

    def is_skipped(self, topic: TopicName) -> bool:
        """Whether the lake of its namespace leaves it out since it is internal, and nothing names it."""
        named = topic.local in self.topics or topic.local in self.ignored
        return not named and self.every is not None and self._usual(topic) is None

    def _usual(self, topic: TopicName) -> Definition | None:
        return None if topic.local in self.logs or is_internal(topic) else self.every

    def problem(self, topic: TopicName) -> str | None:
        """Why the topic's definition is ignored; None if it is not."""
        if topic.local in self.ignored:
            return self.ignored[topic.local]
        return None if topic.local in self.topics else self.ignored.get("")

    def read(self, topic: TopicName) -> Definition | None:
        """The same as `of`. LakeError if the definition is ignored: what is in its table would be left out."""
        problem = self.problem(topic)
        if problem is not None:
            raise LakeError(f"the lake definition of {topic} is ignored: {problem}", hint=_HINT)
        return self.of(topic)


def where(to: str | None, data: str) -> str:
    """The URL that `--to` means: as given, or the folder `lake` beside the broker's data if that is here."""
    if to is None:
        if not Path(data).is_dir():
            raise ConfigError("the broker's data is not on this machine", hint="say where with --to URL")
        to = str(Path(data) / "lake")
    if any(letter in to for letter in "#?"):
        raise ConfigError(f"{to} has a # or a ?, which ends a URL's path", hint="name a place without them")
    if not urlsplit(to).scheme:
        to = f"file://{Path(to).absolute()}"  # not quoted: pyiceberg takes it as it is
    return check_store(to).rstrip("/")


def catalog_of(catalog: str | None, to: str, data: str) -> str:
    """The address of the catalog: as given, or a file of SQLite's beside the tables, or beside the data."""
    if catalog is not None:
        return check_address(catalog)
    if to.startswith("file:"):
        return f"sqlite:///{urlsplit(to).path}/catalog.db"
    if not Path(data).is_dir():
        raise ConfigError("the broker's data is not on this machine", hint="name a catalog with --catalog URL")
    return f"sqlite:///{Path(data).absolute()}/lake/catalog.db"


# --- catalogs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListedCatalog:
    """A catalog that may be selected. Its definition is for superusers; others know its name and kind."""

    name: str
    kind: str
    defined: LakeCatalog | None


def list_catalogs(access: Access) -> list[ListedCatalog]:
    try:
        return [_listed(one) for one in ask(access, "GET", _CATALOGS)]
    except (KeyError, TypeError, AttributeError):
        raise WireError("the server does not tell the lake's catalogs as expected") from None


def _listed(told: Mapping[str, Any]) -> ListedCatalog:
    name, kind, tenants = told["name"], told["kind"], told["tenants"]
    if told["to"] is None:
        return ListedCatalog(name, kind, None)
    permitted = None if tenants is None else tuple(tenants)
    return ListedCatalog(
        name, kind, LakeCatalog(name, told["to"], told["catalog"], dict(told["options"] or {}), permitted)
    )


def put_catalog(access: Access, catalog: LakeCatalog) -> None:
    """Define it, or define it anew; takes a superuser."""
    check_catalog(catalog)
    body = {
        "to": catalog.to,
        "catalog": catalog.catalog,
        "options": dict(catalog.options),
        "tenants": None if catalog.tenants is None else list(catalog.tenants),
    }
    ask(access, "PUT", join(_CATALOGS, catalog.name), body)


def remove_catalog(access: Access, name: str) -> None:
    ask(access, "DELETE", join(_CATALOGS, name))


def ensure_catalog(access: Access, wanted: Definition, tenant: str, name: str | None = None) -> str:
    """The name of a catalog with these addresses and options, which is defined now if there is none: that takes a
    superuser. Without a `name` it is made of the place, and for this tenant alone."""
    known = list_catalogs(access)
    for one in known:
        defined = one.defined
        if defined is None or not defined.permits(tenant):
            continue
        if defined.same_place(wanted.to, wanted.catalog, dict(wanted.options)):
            return one.name
    check_options(wanted.options, LakeCatalog("", wanted.to, wanted.catalog).kind)
    tenants = None if name is not None else (tenant,)
    found = LakeCatalog(name or _name_of(wanted, tenant), wanted.to, wanted.catalog, dict(wanted.options), tenants)
    put_catalog(access, found)
    return found.name


def _name_of(wanted: Definition, tenant: str) -> str:
    told = sha256(f"{tenant}\n{replace(wanted, keep_ms=None, tiered_after_ms=None).text()}".encode()).hexdigest()
    return f"{_NO_NAME.sub('-', wanted.to).strip('-')[-_MAX_NAME:].strip('-')}-{told[:8]}"


# --- namespaces -----------------------------------------------------------------------------------------------


def turn_on(access: Access, namespace: NamespaceName, topic: str | None, wanted: Definition) -> None:
    """With the catalog that has these addresses, which a superuser defines so if there is none."""
    name = wanted.name or ensure_catalog(access, wanted, namespace.tenant)
    select(access, namespace, topic, LakeSelection(name, wanted.keep_ms, wanted.tiered_after_ms))


def select(access: Access, namespace: NamespaceName, topic: str | None, wanted: LakeSelection) -> None:
    """Have the topic, or all topics of the namespace, exported to a catalog that is defined."""
    name = LAKE_PROPERTY if topic is None else f"{LAKE_TOPIC_PREFIX}{topic}"
    ask_v2(access, "PUT", namespace_path(namespace, "properties"), {name: wanted.text()})


def turn_off(access: Access, namespace: NamespaceName, topic: str | None) -> bool:
    """Whether it was on. What is in tables stays there."""
    now = namespace_lake(access, namespace)
    if topic is None:
        _remove(access, namespace, LAKE_PROPERTY)
        return now.every is not None or "" in now.ignored
    said = topic in now.topics or topic in now.ignored
    if now.every is not None or "" in now.ignored:
        ask_v2(access, "PUT", namespace_path(namespace, "properties"), {f"{LAKE_TOPIC_PREFIX}{topic}": LAKE_OFF})
    elif said:
        _remove(access, namespace, f"{LAKE_TOPIC_PREFIX}{topic}")
    return topic in now.ignored or now.topics.get(topic, now.every) is not None


def _remove(access: Access, namespace: NamespaceName, name: str) -> None:
    ask_v2(access, "DELETE", namespace_path(namespace, "property", name))


def namespace_lake(access: Access, namespace: NamespaceName) -> NamespaceLake:
    return _told_lake(ask(access, "GET", join(_LAKE, namespace.tenant, namespace.name)))


def whole_lake(access: Access) -> dict[NamespaceName, NamespaceLake]:
    """Of every namespace that this user administers and that says something of the lake."""
    found = [_told_lake(one) for one in ask(access, "GET", _LAKE)]
    for one in found:
        for local, problem in one.ignored.items():
            _report(one.namespace, local, problem)
    return {one.namespace: one for one in found}


def _report(namespace: NamespaceName, local: str, problem: str) -> None:
    """In the log, once."""
    if (namespace, local, problem) not in _reported:
        _reported[namespace, local, problem] = None
        what = f"{namespace}/{local}" if local else str(namespace)
        log.warning("the lake definition of %s is ignored: %s (%s)", what, problem, _HINT)


def _told_lake(told: Any) -> NamespaceLake:
    try:
        namespace, owner = NamespaceName.parse(told["namespace"]), told["owner"]
        said = {**told["topics"]} if told["every"] is None else {"": told["every"], **told["topics"]}
        topics: dict[str, Definition | None] = {}
        ignored: dict[str, str] = {}
        for local, one in said.items():
            try:
                topics[local] = None if one["off"] else _defined(one, owner)
            except LakeError as refused:
                ignored[local] = refused.what
    except (KeyError, TypeError, AttributeError):
        raise WireError("the server does not tell the lake's definitions as expected") from None
    return NamespaceLake(namespace, topics.pop("", None), topics, ignored, frozenset(told.get("logs", ())))


def _defined(told: Mapping[str, Any], owner: str) -> Definition:
    """LakeError if the definition is to be ignored."""
    if told["to"] is None:
        raise LakeError(told["problem"])
    found = Definition(
        told["to"], told["catalog"], told["options"], told["keepMs"], told["tieredAfterMs"], owner, told["name"]
    )
    found.check()
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


#: What a task of Spark's died of, in the words of its Python: `OSError: the disk is full`.
_CAUSE = re.compile(r"[\w.]*(Error|Exception): \S")


def in_a_line(failure: Exception) -> str:
    """Spark's have the stacks of both sides in them."""
    if isinstance(failure, WeirError):
        return str(failure)
    told = [line.strip() for line in str(failure).splitlines() if line.strip()]
    causes = [line for line in told if _CAUSE.match(line)]
    return next(reversed(causes), told[0] if told else type(failure).__name__)


T = TypeVar("T")

#: Properties by which pyiceberg imports a class, and those by which it calls others' code.
_CLASSES = ("py-io-impl", "write.py-location-provider.impl")
_CALLABLES = ("s3.retry-strategy-impl", "s3.signer")

#: pyiceberg's names, and the variables of AWS' own tools, the first that is set.
_FROM_ENVIRONMENT = {
    "s3.endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "s3.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "s3.access-key-id": ("AWS_ACCESS_KEY_ID",),
    "s3.secret-access-key": ("AWS_SECRET_ACCESS_KEY",),
    "s3.session-token": ("AWS_SESSION_TOKEN",),
}
#: What every S3-compatible server takes.
_REGION = "us-east-1"
_CATALOG_NAME = "weir"
_POSTGRESQL = "postgresql://"
#: How long a writer waits for another one's lock on SQLite's file.
_SQLITE_PATIENCE_S = 60
#: How long a read waits for a store that is away, and how often it asks again. Shorter than the minute after which
#: Hadoop's client no longer waits for the gateway's answer.
STORE_PATIENCE_S, _STORE_PAUSE_S = 30.0, 0.5
#: What Arrow says of a store that cannot answer now, and may again.
_AWAY = (
    "NETWORK_CONNECTION",
    "SERVICE_UNAVAILABLE",
    "INTERNAL_FAILURE",
    "REQUEST_TIMEOUT",
    "SLOW_DOWN",
    "curlCode",
)


def store_options(definition: Definition) -> dict[str, str]:
    """What a process needs to reach the store: as defined, and by the environment. Travels to tasks."""
    found = {}
    if definition.to.startswith("s3"):
        for name, variables in _FROM_ENVIRONMENT.items():
            said = next((os.environ[one] for one in variables if os.environ.get(one)), None)
            if said is not None:
                found[name] = said
        found.setdefault("s3.region", _REGION)
    return found | dict(definition.options)


def suit_store(options: Mapping[str, str]) -> None:
    """Before a process writes to the store. Servers that are not Amazon's may not know the checksums that its
    client sends behind each upload unless told otherwise: some refuse them, others keep them as a part of the
    file."""
    if "s3.endpoint" in options:
        os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")


class PatientReads:
    """Reads of one store: if it is away, they are tried again a moment later, all of them for so long together."""

    def __init__(
        self,
        where: str,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._where = where
        self._now = now
        self._sleep = sleep
        self._away_since: float | None = None

    def __call__(self, read: Callable[[], T]) -> T:
        """LakeError if the store does not come back."""
        while True:
            try:
                found = read()
            except OSError as failure:
                if not any(word in str(failure) for word in _AWAY):
                    raise
                if self._away_since is None:
                    self._away_since = self._now()
                if self._now() - self._away_since >= STORE_PATIENCE_S:
                    raise self.trouble() or failure from failure
            else:
                self._away_since = None
                return found
            self._sleep(_STORE_PAUSE_S)

    def trouble(self) -> LakeError | None:
        """What is wrong with the store, if it did not answer last."""
        if self._away_since is None:
            return None
        return LakeError(f"the store of the lake, {self._where}, does not answer", hint="start it, and try again")


def folder_in(io: Any, location: str) -> tuple[Any, str]:
    """Arrow's file system of a place, and its path there."""
    scheme, host, path = io.parse_location(location, io.properties)
    return io.fs_by_scheme(scheme, host), path


def open_catalog(definition: Definition) -> "Catalog":
    """LakeError says what to install or to mend, or what this process must not open."""
    definition.check()
    options = store_options(definition)
    suit_store(options)
    return _opened(definition.catalog, definition.to, tuple(sorted(options.items())))


@lru_cache(maxsize=1)
def refuse_foreign_classes() -> None:
    """pyiceberg imports classes that properties of a table name (`py-io-impl` and others): a writer of the catalog
    would choose what runs in the process that reads the table. LakeError for all but pyiceberg's own."""
    import pyiceberg.io
    import pyiceberg.table.locations

    modules: Mapping[Any, str] = {
        pyiceberg.io: "_import_file_io",
        pyiceberg.table.locations: "_import_location_provider",
    }
    for module, name in modules.items():
        setattr(module, name, _own_classes_only(getattr(module, name)))


def _own_classes_only(load: Callable[..., T]) -> Callable[..., T]:
    def checked(name: str, *rest: Any) -> T:
        properties: Mapping[str, str] = rest[-1]
        classes = [name, *(properties[one] for one in _CLASSES if one in properties)]
        foreign = [one for one in classes if not str(one).startswith("pyiceberg.")]
        foreign += [f"{one}={properties[one]}" for one in _CALLABLES if properties.get(one)]
        if foreign:
            raise LakeError(
                f"a table of the lake names the class {str(foreign[0])[:100]!r}, which is not pyiceberg's own",
                hint="remove the property from the table; find out who wrote it",
            )
        return load(name, *rest)

    return checked


@lru_cache(maxsize=64)
def _opened(address: str, warehouse: str, options: tuple[tuple[str, str], ...]) -> "Catalog":
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as missing:
        raise LakeError(
            f"the lake needs pyiceberg, and {missing.name} is not installed",
            hint=f"install it with {install_command('lake')}",
        ) from None
    refuse_foreign_classes()
    found: Mapping[str, str | None]
    if address.startswith("http"):
        found = {"type": "rest", "uri": address}
    else:
        found = {"type": "sql", "uri": _sql(address)}
    try:
        return load_catalog(_CATALOG_NAME, **{**found, "warehouse": warehouse, **dict(options)})
    except Exception as failure:
        raise LakeError(
            f"the lake's catalog {address} does not open: {in_a_line(failure)}",
            hint="check --catalog of weir lake on, and that it is there",
        ) from failure


def _sql(address: str) -> str:
    if address.startswith(_POSTGRESQL):  # by the driver that the extra installs
        return f"postgresql+psycopg://{address.removeprefix(_POSTGRESQL)}"
    if not address.startswith("sqlite:"):
        return address
    Path(urlsplit(address).path.removeprefix("/")).parent.mkdir(parents=True, exist_ok=True)
    return f"{address}?timeout={_SQLITE_PATIENCE_S}"
