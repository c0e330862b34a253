"""Names of topics and namespaces, as every protocol and the metadata spell them.

Names that belong to a tenant: of consumer groups, transactional ids and sinks (`docs/adr/0023-whose-names.md`).

A client says `billing`. Kept is `billing` for whoever is of no tenant or of `public`, so that what was kept before
is found; for others the tenant is part of what is kept, behind a mark that no name from outside has. Those who are
not of the tenant, but may know of it, see `acme/billing`.

Overviews of topics: what a list shows of a topic that no broker has loaded.

Topics that Weir and its clients keep for themselves: state, positions, retries. The lake of a namespace leaves
them out unless they are named.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from weir.model.errors import InvalidNameError

_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,5})")
_MAX_NAME_BYTES = 512


class Domain(Enum):
    """Whether a topic's messages are stored."""

    PERSISTENT = "persistent"
    NON_PERSISTENT = "non-persistent"


def check_entity_name(name: str, what: str) -> str:
    """A tenant's, namespace's or cluster's name, if it may be one."""
    if not _ENTITY.fullmatch(name) or len(name) > _MAX_NAME_BYTES or name in (".", ".."):
        raise InvalidNameError(
            f"{name[:80]!r} is not a {what} name", hint="use letters, digits and - = : . _ only"
        )
    return name


@dataclass(frozen=True, slots=True, order=True)
class NamespaceName:
    """`tenant/name`."""

    tenant: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "NamespaceName":
        tenant, slash, name = text.partition("/")
        if not slash:
            raise InvalidNameError(f"{text[:80]!r} is not a namespace", hint="write it as tenant/namespace")
        return cls(check_entity_name(tenant, "tenant"), check_entity_name(name, "namespace"))

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"


DEFAULT_NAMESPACE = NamespaceName("public", "default")


@dataclass(frozen=True, slots=True)
class TopicName:
    """`domain://tenant/namespace/local`, and which partition of it, if it is one."""

    namespace: NamespaceName
    local: str
    domain: Domain = Domain.PERSISTENT
    partition: int | None = None

    @classmethod
    def parse(cls, text: str) -> "TopicName":
        """From the full form, from `tenant/namespace/local`, or from `local` in the default namespace."""
        scheme, separator, rest = text.partition("://")
        if not separator:
            scheme, rest = Domain.PERSISTENT.value, text
        try:
            domain = Domain(scheme)
        except ValueError:
            raise InvalidNameError(
                f"{text[:80]!r} has an unknown domain", hint="use persistent:// or non-persistent://"
            ) from None
        parts = rest.split("/")
        if len(parts) == 1 and not separator:
            namespace = DEFAULT_NAMESPACE
        elif len(parts) == 3:
            namespace = NamespaceName.parse("/".join(parts[:2]))
        else:
            raise InvalidNameError(
                f"{text[:80]!r} is not a topic name", hint="write it as persistent://tenant/namespace/topic"
            )
        return cls(namespace, _check_local(parts[-1]), domain)._split_partition()

    def _split_partition(self) -> "TopicName":
        found = _PARTITION.fullmatch(self.local)
        if found is None:
            return self
        return TopicName(self.namespace, found[1], self.domain, int(found[2]))

    @property
    def base(self) -> "TopicName":
        """The topic as a whole, without a partition."""
        return TopicName(self.namespace, self.local, self.domain)

    def at(self, partition: int) -> "TopicName":
        """One partition of the topic."""
        return TopicName(self.namespace, self.local, self.domain, partition)

    @property
    def persistent(self) -> bool:
        return self.domain is Domain.PERSISTENT

    @property
    def local_with_partition(self) -> str:
        return self.local if self.partition is None else f"{self.local}-partition-{self.partition}"

    def __str__(self) -> str:
        return f"{self.domain.value}://{self.namespace}/{self.local_with_partition}"


def _check_local(local: str) -> str:
    if not local or len(local.encode(errors="replace")) > _MAX_NAME_BYTES:
        raise InvalidNameError(f"a topic name has 1 to {_MAX_NAME_BYTES} bytes, {local[:80]!r} does not")
    if local in (".", "..") or any(c < " " or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in local):
        raise InvalidNameError(f"{local[:80]!r} is not a topic name", hint="leave control characters out")
    return local


#: Begins what is kept for a tenant. Tenants' names hold no slash.
_MARK = "\x1f"
#: Transactional ids of a sink's writers are `weir-sink/<the sink's name>/<anything>`: so their coordinator is the
#: sink's, and one write of it decides all of them.
SINK_PREFIX = "weir-sink"


def check_unmarked(name: str) -> None:
    """InvalidNameError for a name from outside that looks like one that is kept for a tenant."""
    if _MARK in name:
        raise InvalidNameError(f"{name[:80]!r} has a control character in it", hint="use printable characters")


def kept_name(tenant: str, name: str) -> str:
    """What a coordinator calls a tenant's name; without a tenant, the name itself."""
    return f"{_MARK}{tenant}/{name}" if tenant else name


def tenant_of_name(kept: str) -> str:
    """The tenant that a kept name belongs to; nothing if it is nobody's in particular, or of `public`."""
    return kept[1:].partition("/")[0] if kept.startswith(_MARK) else ""


def plain_name(kept: str) -> str:
    """The name as its tenant's clients say it."""
    return kept.partition("/")[2] if kept.startswith(_MARK) else kept


def full_name(kept: str) -> str:
    """The name as others may see it."""
    return kept.removeprefix(_MARK)


@dataclass(frozen=True, slots=True)
class SubscriptionOverview:
    """A durable subscription when its topic was unloaded. `holes`: messages acknowledged one by one."""

    name: str
    mark_delete: int
    backlog: int
    backlog_bytes: int = 0
    holes: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicOverview:
    """A topic when it was unloaded. `version`: of its chain of ledgers in the metadata; whoever loads the topic
    writes the chain, so an overview with another version is out of date."""

    version: int
    start_offset: int
    end_offset: int
    storage_bytes: int
    ledgers: int
    terminated: bool
    subscriptions: tuple[SubscriptionOverview, ...] = ()
