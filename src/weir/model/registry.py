"""What the metadata store knows of tenants, namespaces, topics, grants, schemas and brokers.

Users with passwords, and what RabbitMQ's patterns of names let them do.

A user's name is its role, so grants are the same thing for a user and for who comes with a token.

Names by regular expressions: which namespaces and which brokers an isolation policy means.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import TypeVar
from urllib.parse import urlsplit

from weir.model.errors import InvalidNameError
from weir.model.policies import IsolationPolicy, Policies
from weir.model.topics import NamespaceName, TopicName

_V = TypeVar("_V")

#: The one cluster that a Weir without geo-replication knows.
STANDALONE = "standalone"
#: Where brokers keep topics of their own; nobody can create or delete these tenants.
SYSTEM_TENANTS = ("pulsar", "weir")
#: Brokers' own topics. They have no records, so that they are listed nowhere, and are served to no user.
SYSTEM_NAMESPACE = NamespaceName("weir", "system")

_MAX_ROLE_CHARS = 1024
_MOMENT_BYTES = 6


def check_role(role: str) -> str:
    """A role's name, if it may be one: any text without control characters."""
    if not role or len(role) > _MAX_ROLE_CHARS or any(c < " " or c == "\x7f" for c in role):
        raise InvalidNameError(f"{role[:80]!r} cannot be a role", hint="use 1 to 1024 printable characters")
    return role


class Action(Enum):
    """What a role can be granted, in Pulsar's words."""

    PRODUCE = "produce"
    CONSUME = "consume"
    FUNCTIONS = "functions"
    SOURCES = "sources"
    SINKS = "sinks"
    PACKAGES = "packages"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster and where its brokers are reached; None where nobody said."""

    name: str
    service_url: str | None = None
    broker_service_url: str | None = None
    #: Which brokers are kept for which namespaces, by the policies' names.
    isolation: Mapping[str, IsolationPolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who may administer it, and in which clusters its topics may be. `deleting`: takes no new namespaces."""

    name: str
    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = (STANDALONE,)
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Namespace:
    """A group of topics and what holds for all of them. `deleting`: takes no new topics."""

    name: NamespaceName
    policies: Policies = field(default_factory=Policies)
    properties: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic as a whole: `partitions` is 0 for one that is not partitioned. `deleting`: it is served to nobody,
    and whoever asks for it deletes what is left of it first."""

    name: TopicName
    partitions: int = 0
    policies: Policies = field(default_factory=Policies)
    properties: Mapping[str, str] = field(default_factory=dict)
    created_ms: int = 0
    deleting: bool = False
    #: Whether its id begins with when it was made, so that an index of many grows at its end; others are older.
    ordered_id: bool = False

    @property
    def topic_id(self) -> bytes:
        """16 bytes that no other topic has, not even a later one of this name."""
        if self.ordered_id:
            name = hashlib.blake2b(str(self.name).encode(), digest_size=16 - _MOMENT_BYTES).digest()
            return self.created_ms.to_bytes(_MOMENT_BYTES, "big") + name
        return hashlib.blake2b(f"{self.name}\0{self.created_ms}".encode(), digest_size=16).digest()

    def parts(self) -> list[TopicName]:
        """The topics that hold messages: each partition, or the topic itself."""
        return [self.name.at(n) for n in range(self.partitions)] if self.partitions else [self.name]

    def holds(self, name: TopicName) -> bool:
        """Whether `name` is the topic as a whole or one of its partitions."""
        return name.partition is None or name.partition < self.partitions


def system_record(name: TopicName) -> TopicRecord:
    """What would stand in the metadata of a topic in `SYSTEM_NAMESPACE`: it has the partition that is named."""
    return TopicRecord(name.base, 0 if name.partition is None else name.partition + 1)


@dataclass(frozen=True, slots=True)
class NamePatterns:
    """Regular expressions of names (of queues, exchanges and topics) that a role may configure, write to and read
    from, as RabbitMQ's permissions: found anywhere in the name, "" finds nothing."""

    configure: str
    write: str
    read: str

    @property
    def actions(self) -> tuple[Action, ...]:
        """What it allows with whatever name."""
        said = ((Action.PRODUCE, self.write), (Action.CONSUME, self.read))
        return tuple(action for action, pattern in said if pattern in _EVERY_NAME)

    @property
    def somewhere(self) -> tuple[Action, ...]:
        """What it allows with some names, if any have them."""
        said = ((Action.PRODUCE, self.write), (Action.CONSUME, self.read))
        return tuple(action for action, pattern in said if pattern not in _NO_NAME)

    @classmethod
    def of(cls, actions: Iterable[Action]) -> "NamePatterns":
        """The patterns that say the same as a grant on the namespace: to configure takes both."""
        produce, consume = Action.PRODUCE in actions, Action.CONSUME in actions
        return cls(*(".*" if allowed else "^$" for allowed in (produce and consume, produce, consume)))


_EVERY_NAME = frozenset({".*", "^.*$", "^.*", ".*$"})
_NO_NAME = frozenset({"", "^$"})


@dataclass(frozen=True, slots=True)
class KeyPatterns:
    """Regular expressions of routing keys that a role may publish with to a topic exchange, and bind by: found
    anywhere in the key, "" finds the empty one alone. `{username}` and `{vhost}` stand for what they say."""

    write: str
    read: str


@dataclass(frozen=True, slots=True)
class Grants:
    """What each role may do with a tenant, a namespace or a topic. `patterns`: of a namespace, where a role's
    grants are more than its actions say."""

    roles: Mapping[str, tuple[Action, ...]] = field(default_factory=dict)
    patterns: Mapping[str, NamePatterns] = field(default_factory=dict)
    #: Of a namespace, by role and exchange: what else holds for the routing keys of topic exchanges.
    keys: Mapping[str, Mapping[str, KeyPatterns]] = field(default_factory=dict)

    def allows(self, role: str, action: Action) -> bool:
        return action in self.roles.get(role, ())

    def somewhere(self) -> Iterator[tuple[str, Action]]:
        """Each role with each of the actions that it may do here or with something in here."""
        for role in {**self.roles, **self.patterns}:
            allowed = dict.fromkeys(self.roles.get(role, ()))
            if role in self.patterns:
                allowed.update(dict.fromkeys(self.patterns[role].somewhere))
            for action in allowed:
                yield role, action

    def granted(self, role: str, actions: tuple[Action, ...]) -> "Grants":
        """With exactly these for the role, instead of what it had."""
        if self.roles.get(role) == actions and role not in self.patterns:
            return self
        return replace(self, roles={**self.roles, role: actions}, patterns=_without(self.patterns, role))

    def permitted(self, role: str, patterns: NamePatterns) -> "Grants":
        """With these patterns for the role. What they allow with every name is a grant like any other."""
        kept = [action for action in self.roles.get(role, ()) if action not in (Action.PRODUCE, Action.CONSUME)]
        actions = (*patterns.actions, *kept)
        same = patterns == NamePatterns.of(actions)
        roles = {**self.roles, role: actions} if actions or same else _without(self.roles, role)
        others = _without(self.patterns, role)
        now = replace(self, roles=roles, patterns=others if same else {**others, role: patterns})
        return self if now == self else now

    def revoked(self, role: str) -> "Grants":
        if role not in self.roles and role not in self.patterns:
            return self
        return replace(self, roles=_without(self.roles, role), patterns=_without(self.patterns, role))

    def with_keys(self, role: str, exchange: str, patterns: KeyPatterns | None) -> "Grants":
        """With these for the role and the exchange; None: with none."""
        others = _without(self.keys.get(role, {}), exchange)
        now = others if patterns is None else {**others, exchange: patterns}
        return replace(self, keys={**self.keys, role: now} if now else _without(self.keys, role))


def _without(of: Mapping[str, _V], role: str) -> dict[str, _V]:
    return {one: value for one, value in of.items() if one != role}


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """How clients and other brokers reach a broker, by the names of its listeners. `instance` differs from one
    start of it to the next, `node_id` never: it is the number that protocols know the broker by. `features`: what
    it can do that brokers of before could not; a cluster uses what all of its brokers have."""

    broker_id: str
    instance: str
    listeners: Mapping[str, str] = field(default_factory=dict)
    node_id: int = 0
    rack: str = ""
    features: tuple[str, ...] = ()
    #: It hands over what it has, and takes nothing.
    draining: bool = False


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version of a topic's schema. `deleted`: what came before it counts no longer, and it is no schema."""

    version: int
    type: str
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    role: str = ""
    created_ms: int = 0
    deleted: bool = False


#: Tags of RabbitMQ that mean something here: everything; look at everything; look at what one has to do with; the
#: last, and set policies.
ADMINISTRATOR = "administrator"
MONITORING = "monitoring"
MANAGEMENT = "management"
POLICYMAKER = "policymaker"

_MAX_TAGS = 64
_MAX_HASH_CHARS = 1024


class PasswordHashing(Enum):
    """How a password became its hash, in RabbitMQ's words: base64 of four bytes of salt and the digest of salt and
    password."""

    SHA256 = "rabbit_password_hashing_sha256"
    SHA512 = "rabbit_password_hashing_sha512"


@dataclass(frozen=True, slots=True)
class User:
    """`password_hash`: "" for one that no password lets in."""

    name: str
    password_hash: str = ""
    hashing: PasswordHashing = PasswordHashing.SHA256
    tags: tuple[str, ...] = ()

    @property
    def administrator(self) -> bool:
        return ADMINISTRATOR in self.tags

    @property
    def monitors(self) -> bool:
        """Whether it may look at everything."""
        return self.administrator or MONITORING in self.tags

    @property
    def makes_policies(self) -> bool:
        return self.administrator or POLICYMAKER in self.tags

    @property
    def manages(self) -> bool:
        """Whether the management API is for it at all."""
        return self.monitors or self.makes_policies or MANAGEMENT in self.tags


def check_user(user: User) -> User:
    """InvalidNameError for a name or a tag that cannot be one."""
    check_role(user.name)
    for tag in user.tags:
        check_role(tag)
    return user


def tags_of(said: str | Sequence[str]) -> tuple[str, ...]:
    """Tags as RabbitMQ's API takes them: a list, or text with commas."""
    words = said.split(",") if isinstance(said, str) else said
    return tuple(dict.fromkeys(tag for word in words if (tag := word.strip())))[:_MAX_TAGS]


def matches(patterns: Sequence[str], name: str) -> bool:
    """Whether one of the regular expressions is the whole name."""
    return any(_compiled(pattern).fullmatch(name) for pattern in patterns)


def is_named(patterns: Sequence[str], broker: BrokerInfo) -> bool:
    """Whether one of the regular expressions is the broker's whole name, or that of a host where it is reached."""
    return bool(patterns) and (
        matches(patterns, broker.broker_id)
        or any(matches(patterns, _host(url)) for url in broker.listeners.values())
    )


def _host(url: str) -> str:
    return urlsplit(url if "://" in url else f"//{url}").hostname or ""


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> "re.Pattern[str]":
    return re.compile(pattern)
