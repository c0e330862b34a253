"""Who somebody is, and what they may do."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from weir.model.registry import Action
from weir.model.topics import NamespaceName, TopicName

#: What a grant is on: a tenant (by its name), a namespace, or a topic (a partition's name stands for its topic).
Scope: TypeAlias = str | NamespaceName | TopicName


@dataclass(frozen=True, slots=True)
class Identity:
    """A role, and until when its credentials are good (milliseconds since 1970; None: for ever)."""

    role: str
    expires_ms: int | None = None


class Guard(Protocol):
    @property
    def revision(self) -> int:
        """Grows whenever an answer may have changed."""

    async def change(self, seen: int) -> int:
        """Wait until `revision` is no longer `seen`; answers what it is."""

    def check(
        self, role: str, topic: TopicName, action: Action | None, *, subscription: str | None = None
    ) -> None:
        """NotAuthorisedError if the role may not; without an action: whether it may know of the topic at all."""

    def check_configure(self, role: str, topic: TopicName) -> None:
        """NotAuthorisedError if the role may not make or delete queues of this name: both to produce and to
        consume are needed, unless the role was given patterns of what it may configure."""

    def check_policies(self, role: str, namespace: NamespaceName) -> None:
        """NotAuthorisedError if the role may not set policies of queues and exchanges."""

    def check_listing(self, role: str, namespace: NamespaceName) -> None:
        """NotAuthorisedError if the role may not know which topics there are."""

    def check_admin(self, role: str, namespace: NamespaceName) -> None:
        """NotAuthorisedError if the role may not say what holds for all of a namespace."""

    def check_stored_target(self, source: TopicName, target: TopicName) -> None:
        """NotAuthorisedError if no role that can store a policy on `source` may produce to `target`. For stored
        policies by which the broker copies messages: earlier releases did not check them."""


class Authoriser(Protocol):
    """What roles may do, for administrators' calls. A check raises NotAuthorisedError."""

    @property
    def revision(self) -> int:
        """Grows whenever an answer may have changed: cheap to compare before each use of an old answer."""

    def may(self, role: str, action: Action, scope: Scope) -> bool:
        """Whether the role may do this with a tenant (by name), a namespace or a topic."""

    def may_administer(self, role: str, scope: Scope) -> bool:
        """Whether the role may change policies, create and delete topics, grant, and so on."""

    def may_configure(self, role: str, scope: Scope) -> bool:
        """Whether the role may make and delete a queue or an exchange of this name."""

    def may_look(self, role: str, scope: Scope) -> bool:
        """Whether the role may know of it: see `check_lookup`."""

    def may_set_policies(self, role: str, namespace: NamespaceName) -> bool:
        """Of queues and exchanges: as administrator of the tenant, or as one that makes policies for it."""

    def may_monitor(self, role: str) -> bool:
        """Whether the role may look at everything, whatever it may do."""

    def is_superuser(self, role: str) -> bool: ...

    def may_see_machine(self, role: str) -> bool:
        """Whether the role may know paths of the broker's machine."""

    def check(self, role: str, action: Action, scope: Scope) -> None:
        """NotAuthorisedError unless the role may do this."""

    def check_configure(self, role: str, scope: Scope) -> None:
        """NotAuthorisedError unless the role may make and delete queues or exchanges of this name."""

    def check_lookup(self, role: str, scope: Scope) -> None:
        """To find a topic, or list a namespace's, one must be able to produce or consume there."""

    def check_admin(self, role: str, scope: Scope) -> None:
        """NotAuthorisedError unless the role administers the tenant that this is, or is in."""

    def check_superuser(self, role: str) -> None:
        """For what concerns the whole cluster: tenants, brokers."""
