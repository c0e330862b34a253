"""The lake's definitions: catalogs, which a superuser defines, and what a namespace selects of them.

A catalog says where tables lie and with which options a process opens them. Processes that open it have more
rights than a tenant, so a namespace holds the catalog's name alone. What is not on the lists here is refused where
it is defined, where it is read, and where it is used (docs/how-to/security.md#threat-model).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from weir.model.definitions import PREFIX as _FUNCTION
from weir.model.definitions import is_selection
from weir.model.errors import ConfigError, InvalidNameError, LakeError
from weir.model.topics import TopicName

#: Properties of a namespace: of all its topics; of the topic whose local name follows; whose tables these are.
LAKE_PROPERTY, LAKE_TOPIC_PREFIX, LAKE_OWNER = "lake", "lake.", "lake-owner"
#: What a property says of a topic that is not in the lake although its namespace is.
LAKE_OFF = "off"
#: The catalog of a namespace that names none.
DEFAULT_CATALOG = "default"

_CATALOG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_OWNER_ID = re.compile(r"[0-9a-f]{32}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MAX_CHARS = 4_000
_MAX_OPTIONS = 50
_STORES = ("file", "s3", "s3a")
#: Words in the names of options that are secrets: definitions can be read by administrators of namespaces.
_SECRET = ("secret", "password", "token", "credential", "access-key", "account-key")

#: pyiceberg's options of a store.
_STORE_OPTIONS = frozenset(
    {
        *("s3.endpoint", "s3.region", "s3.connect-timeout", "s3.request-timeout"),
        *("s3.force-virtual-addressing", "s3.proxy-uri", "s3.role-arn", "s3.role-session-name"),
        *("s3.resolve-region", "s3.anonymous"),
        *("client.region", "client.role-arn", "client.role-session-name"),
    }
)
#: pyiceberg's options of a catalog, by its kind. Options that name a class, a module or a file of the process are
#: on no list: `py-io-impl`, `py-catalog-impl`, `s3.retry-strategy-impl`, `s3.signer`, `auth`, `ssl`, ...
_CATALOG_OPTIONS = {
    "sql": frozenset({"pool_pre_ping", "init_catalog_tables"}),
    "rest": frozenset(
        {
            *("prefix", "warehouse", "oauth2-server-uri", "scope", "audience", "resource"),
            *("rest.sigv4-enabled", "rest.signing-region", "rest.signing-name", "snapshot-loading-mode"),
            "header.X-Iceberg-Access-Delegation",
        }
    ),
}


def allowed_options(kind: str) -> list[str]:
    """The names of the options that a catalog of this kind (`sql`, `rest`) may have."""
    return sorted(_STORE_OPTIONS | _CATALOG_OPTIONS[kind])


@dataclass(frozen=True, slots=True)
class LakeCatalog:
    """`to`: the folder or bucket of the tables, as a URL. `catalog`: the Iceberg catalog's address. `tenants`: who
    may select it; None: every tenant."""

    name: str
    to: str
    catalog: str
    options: Mapping[str, str] = field(default_factory=dict)
    tenants: tuple[str, ...] | None = None

    @property
    def kind(self) -> str:
        return "rest" if self.catalog.startswith("http") else "sql"

    def permits(self, tenant: str) -> bool:
        """Whether namespaces of the tenant may select it."""
        return self.tenants is None or tenant in self.tenants

    def same_place(self, to: object, catalog: object, options: object) -> bool:
        """Whether these are its addresses and options."""
        return to == self.to and catalog == self.catalog and (options or {}) == dict(self.options)


def local_catalog(data: str) -> LakeCatalog | None:
    """The catalog beside a broker's data; None if the folder's name cannot be a URL's path."""
    to = f"file://{data}/lake"
    try:
        return check_catalog(LakeCatalog(DEFAULT_CATALOG, to, f"sqlite:///{data}/lake/catalog.db"))
    except ConfigError:
        return None


def check_catalog_name(name: str) -> str:
    if not _CATALOG_NAME.fullmatch(name):
        raise InvalidNameError(
            f"{name[:80]!r} is not the name of a lake catalog", hint="use 1 to 100 letters, digits and . _ -"
        )
    return name


def check_catalog(found: LakeCatalog) -> LakeCatalog:
    """The same; ConfigError names what a catalog must not have."""
    check_catalog_name(found.name)
    check_store(found.to)
    check_address(found.catalog)
    check_options(found.options, found.kind)
    return found


def check_store(to: str) -> str:
    """The URL of a store, if it may be one."""
    _check_text(to, "the place of the tables")
    if any(letter in to for letter in "#?"):
        raise ConfigError(f"{to} has a # or a ?, which ends a URL's path", hint="name a place without them")
    scheme, place, path = urlsplit(to)[:3]
    if scheme not in _STORES:
        raise ConfigError(
            f"{to} is of a kind that is not known", hint="write a folder, file:///... or s3://bucket/..."
        )
    if scheme == "file" and place:
        raise ConfigError(f"{to} names a machine, not a folder", hint="write file:///folder, with three slashes")
    if scheme != "file" and not place:
        raise ConfigError(f"{to} names no bucket", hint="write s3://bucket/path")
    if ".." in path.split("/"):
        raise ConfigError(f"{to} goes up with ..", hint="write the whole path")
    return to


def check_address(catalog: str) -> str:
    """The address of a catalog, if it may be one."""
    _check_text(catalog, "the catalog's address")
    if urlsplit(catalog).password:
        raise ConfigError(
            "the catalog's address has a password, which others can read",
            hint="leave it out, and set PGPASSWORD where weir lake runs",
        )
    if not catalog.startswith(("sqlite:///", "postgresql://", "http://", "https://")):
        raise ConfigError(
            f"{catalog} is a catalog of a kind that is not known",
            hint="write sqlite:///FILE, postgresql://user@host/db, or http(s)://... of a REST catalog",
        )
    return catalog


def check_options(options: Mapping[str, str], kind: str) -> None:
    """ConfigError unless all options are on the list for this kind of catalog."""
    allowed = _STORE_OPTIONS | _CATALOG_OPTIONS[kind]
    if len(options) > _MAX_OPTIONS:
        raise ConfigError(f"{len(options)} options are too many", hint=f"a catalog has {_MAX_OPTIONS} at the most")
    for name, value in options.items():
        if any(word in name.lower() for word in _SECRET):
            raise ConfigError(
                f"{name} is a secret, and others could read it",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY where weir lake runs",
            )
        if name not in allowed:
            raise ConfigError(
                f"option {name[:80]!r} is not allowed for a catalog of the kind {kind}",
                hint=f"allowed are {', '.join(allowed_options(kind))}",
            )
        if not isinstance(value, str):
            raise ConfigError(f"the value of option {name} is no text")
        _check_text(value, f"option {name}")


def _check_text(text: object, what: str) -> None:
    if not isinstance(text, str) or not text or len(text) > _MAX_CHARS or _CONTROL.search(text):
        raise ConfigError(f"{what} is not a text of 1 to {_MAX_CHARS} printable characters")


@dataclass(frozen=True, slots=True)
class LakeSelection:
    """What a property of a namespace says: which catalog, and for how long what is kept where."""

    catalog: str
    #: Rows older than this leave the table; None: never.
    keep_ms: int | None = None
    #: Ledgers that are in the table and older than this are deleted; None: when retention says so.
    tiered_after_ms: int | None = None

    def text(self) -> str:
        """As the property has it."""
        said: dict[str, object] = {"catalog": self.catalog}
        if self.keep_ms is not None:
            said["keepMs"] = self.keep_ms
        if self.tiered_after_ms is not None:
            said["tieredAfterMs"] = self.tiered_after_ms
        return json.dumps(said, sort_keys=True)


@dataclass(frozen=True, slots=True)
class ResolvedLake:
    """A selection with its catalog. Without one, `problem` says why: then nothing is exported or deleted, and what
    was held stays held."""

    selection: LakeSelection
    catalog: LakeCatalog | None
    problem: str = ""


def check_selection(text: str, tenant: str, catalogs: Mapping[str, LakeCatalog]) -> None:
    """LakeError unless a namespace of the tenant may say this."""
    if text == LAKE_OFF:
        return
    said = _parsed(text)
    if said is None or set(said) - {"catalog", "keepMs", "tieredAfterMs"}:
        raise LakeError(
            "a namespace selects a lake catalog by its name; only a superuser defines addresses and options",
            hint='weir lake on NAMESPACE --catalog NAME, or {"catalog": "NAME"}; weir lake catalogs list',
        )
    found = resolve_selection(text, tenant, catalogs)
    if found.catalog is None:
        raise LakeError(found.problem, hint="weir lake catalogs list shows what there is to select")


def resolve_selection(text: str, tenant: str, catalogs: Mapping[str, LakeCatalog]) -> ResolvedLake:
    """What a stored property means. One that an older Weir wrote has addresses of its own: it counts only if a
    catalog that a superuser defined has the same."""
    said = _parsed(text)
    if said is None:
        return ResolvedLake(LakeSelection(""), None, "the property is not as weir lake on writes it")
    named, to = said.get("catalog"), said.get("to")
    if to is not None or "options" in said:
        options = said.get("options")
        same = (one for _, one in sorted(catalogs.items()) if one.same_place(to, named, options))
        found = next((one for one in same if one.permits(tenant)), None)
        problem = "it has addresses or options of its own, and no catalog that this tenant may select has the same"
    else:
        found = catalogs.get(named) if isinstance(named, str) else None
        if found is not None and not found.permits(tenant):
            found = None
        problem = f"tenant {tenant} may select no lake catalog {str(named)[:100]!r}"
    keep, tiered = (_natural(said.get(name)) for name in ("keepMs", "tieredAfterMs"))
    if _INVALID in (keep, tiered):
        found, keep, tiered, problem = None, None, None, "keepMs and tieredAfterMs are milliseconds"
    selection = LakeSelection("" if found is None else found.name, keep, tiered)
    if found is None:
        return ResolvedLake(selection, None, problem)
    try:
        check_catalog(found)
    except (ConfigError, InvalidNameError) as wrong:
        return ResolvedLake(selection, None, f"catalog {found.name} is refused: {wrong.what}")
    return ResolvedLake(selection, found)


def owner_of(properties: Mapping[str, str]) -> str:
    """Whose tables a namespace's are; "" if that is not said, or is no id."""
    said = properties.get(LAKE_OWNER, "")
    return said if _OWNER_ID.fullmatch(said) else ""


_INVALID = -1
_MAX_MS = 2**62


def _natural(said: object) -> int | None:
    if said is None:
        return None
    whole = isinstance(said, int) and not isinstance(said, bool) and 0 <= said <= _MAX_MS
    return said if whole and isinstance(said, int) else _INVALID


def _parsed(text: str) -> dict[str, object] | None:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


# --- topics that a namespace's lake leaves out ---

#: Begin the names of topics of functions and connectors, and of the retries of RocketMQ's groups.
_PREFIXES = (_FUNCTION, "connect-", "%RETRY%")
#: Ends the names of topics in which Pulsar's clients retry.
_RETRY = "-RETRY"


def is_internal(topic: TopicName) -> bool:
    """Whether the topic is no user's, by its name. Log topics of functions have any name, and are others."""
    return topic.local.startswith(_PREFIXES) or topic.local.endswith(_RETRY) or is_selection(topic)
