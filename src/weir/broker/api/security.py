"""Authentication and authorization: identities of clients and permissions of roles."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from weir.model.registry import Action
from weir.model.topics import NamespaceName, TopicName

#: The scope of a grant: a tenant (by its name), a namespace, or a topic (a partition's name stands for its topic).
Scope: TypeAlias = str | NamespaceName | TopicName


@dataclass(frozen=True, slots=True)
class Identity:
    """A role, and the expiry of its credentials (milliseconds since 1970; None: never)."""

    role: str
    expires_ms: int | None = None


class Guard(Protocol):
    @property
    def revision(self) -> int:
        """Grows whenever the result of a check may have changed."""

    async def change(self, seen: int) -> int:
        """Wait until `revision` differs from `seen`; return the new one."""

    def check(
        self, role: str, topic: TopicName, action: Action | None, *, subscription: str | None = None
    ) -> None:
        """NotAuthorisedError if the role may not do this; without an action: if it may not see the topic at
        all."""

    def check_configure(self, role: str, topic: TopicName) -> None:
        """NotAuthorisedError if the role may not create or delete queues of this name. The role must have both
        produce and consume permission, unless it has configure patterns."""

    def check_policies(self, role: str, namespace: NamespaceName) -> None:
        """NotAuthorisedError if the role may not set policies of queues and exchanges."""

    def check_listing(self, role: str, namespace: NamespaceName) -> None:
        """NotAuthorisedError if the role may not list topics."""

    def check_admin(self, role: str, namespace: NamespaceName) -> None:
        """NotAuthorisedError if the role may not administer the namespace."""

    def check_stored_target(self, source: TopicName, target: TopicName) -> None:
        """NotAuthorisedError if no role that can store a policy on `source` may produce to `target`. The broker
        checks stored policies that copy messages, because earlier releases did not check them."""


class Authoriser(Protocol):
    """Permissions of roles, for calls of administrators. A check raises NotAuthorisedError."""

    @property
    def revision(self) -> int:
        """Grows whenever a permission may have changed: cheap to compare before each use of a cached result."""

    def may(self, role: str, action: Action, scope: Scope) -> bool:
        """Whether the role may do this with a tenant (by name), a namespace or a topic."""

    def may_administer(self, role: str, scope: Scope) -> bool:
        """Whether the role may change policies, create and delete topics, grant, and so on."""

    def may_configure(self, role: str, scope: Scope) -> bool:
        """Whether the role may create and delete a queue or an exchange of this name."""

    def may_look(self, role: str, scope: Scope) -> bool:
        """Whether the role may see it: see `check_lookup`."""

    def may_set_policies(self, role: str, namespace: NamespaceName) -> bool:
        """Whether the role may set policies of queues and exchanges, as administrator or `policymaker` of the
        tenant."""

    def may_monitor(self, role: str) -> bool:
        """Whether the role may read all administrative data, regardless of its other permissions."""

    def is_superuser(self, role: str) -> bool: ...

    def may_see_machine(self, role: str) -> bool:
        """Whether the role may see file paths of the broker's machine."""

    def check(self, role: str, action: Action, scope: Scope) -> None:
        """NotAuthorisedError unless the role may do this."""

    def check_configure(self, role: str, scope: Scope) -> None:
        """NotAuthorisedError unless the role may create and delete queues or exchanges of this name."""

    def check_lookup(self, role: str, scope: Scope) -> None:
        """NotAuthorisedError unless the role may produce or consume there: looking up a topic, or listing those of
        a namespace, requires this."""

    def check_admin(self, role: str, scope: Scope) -> None:
        """NotAuthorisedError unless the role administers the tenant of the scope."""

    def check_superuser(self, role: str) -> None:
        """NotAuthorisedError unless the role is a superuser: required for the whole cluster (tenants, brokers)."""
