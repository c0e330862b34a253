"""Whose the names of consumer groups, transactional ids and sinks are: a tenant's (docs/adr/0023-whose-names.md).

A role's names are those of its tenant, so no role of another can take, see or lock one. A role that was granted
nothing of the kind anywhere has no names: whatever it asks for, it is told that it may not, and so learns nothing.
Superusers, and everybody where authorisation is off, use the names as they are, and `tenant/name` for a tenant's.
"""

from collections.abc import Mapping, Set

from weir.broker.registry.registry import Registry
from weir.model.errors import NotAuthorisedError
from weir.model.owned_names import check_unmarked
from weir.model.registry import Action
from weir.model.topics import DEFAULT_NAMESPACE

#: What it holds is called by its plain name.
_PLAIN_TENANT = DEFAULT_NAMESPACE.tenant
_EVERYTHING = frozenset(Action)
#: What a role must be able to do somewhere, to have groups; to have transactional ids and sinks: a transaction may
#: move nothing but positions.
TO_HAVE_GROUPS = frozenset({Action.CONSUME})
TO_HAVE_TRANSACTIONS = frozenset({Action.PRODUCE, Action.CONSUME})
#: Roles whose rights are remembered until one changes.
_KEPT_ROLES = 10_000


class NameOwners:
    """Answers from memory, but when a role uses a name for the first time."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._rights: dict[str, Mapping[str, Set[Action]]] = {}
        self._as_of = -1

    def rights(self, role: str) -> Mapping[str, Set[Action]]:
        """What the role may do at least somewhere in which tenants."""
        revision = self._registry.access_revision
        if self._as_of != revision or len(self._rights) > _KEPT_ROLES:
            self._rights, self._as_of = {}, revision
        found = self._rights.get(role)
        if found is None:
            found = dict(self._registry.grants.of_role(role))
            for name in self._registry.tenants.names():
                tenant = self._registry.tenants.find(name)
                if tenant is not None and role in tenant.admin_roles:
                    found[name] = _EVERYTHING
            self._rights[role] = found
        return found

    def administers(self, role: str, tenant: str) -> bool:
        """`tenant`: as kept names have it."""
        found = self._registry.tenants.find(tenant or _PLAIN_TENANT)
        return found is not None and role in found.admin_roles

    def is_of(self, role: str, tenant: str) -> bool:
        """Whether the role was granted anything in the tenant. `tenant`: as kept names have it."""
        return (tenant or _PLAIN_TENANT) in self.rights(role)

    def check(self, role: str, actions: Set[Action]) -> None:
        """NotAuthorisedError unless the role may do one of these at least somewhere: the same whatever it asks
        for."""
        if not self._may_any(role, actions):
            words = " or ".join(sorted(action.value for action in actions))
            raise NotAuthorisedError(f"{role!r} may {words} nowhere", hint="ask for a grant")

    def _may_any(self, role: str, actions: Set[Action]) -> bool:
        return any(granted & actions for granted in self.rights(role).values())

    async def tenant(self, role: str, actions: Set[Action], name: str) -> str:
        """The tenant that this name is of if the role says it, as kept names have it. InvalidNameError, and as
        `check`."""
        self.check(role, actions)
        check_unmarked(name)
        rights = self.rights(role)
        noted = self._registry.role_tenants.find(role)
        if noted is None or noted not in rights:
            first = _PLAIN_TENANT if _PLAIN_TENANT in rights else min(rights)
            noted = await self._registry.role_tenants.note(role, first, still=rights.__contains__)
        return _as_kept(noted)

    def tenant_now(self, role: str, actions: Set[Action]) -> str | None:
        """The same as far as it is known at once: None if the role used no name before, or may not."""
        noted = self._registry.role_tenants.find(role)
        if noted is None or noted not in self.rights(role) or not self._may_any(role, actions):
            return None
        return _as_kept(noted)


def _as_kept(tenant: str) -> str:
    return "" if tenant == _PLAIN_TENANT else tenant
