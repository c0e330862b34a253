"""Whose the names of consumer groups, transactional ids and sinks are: a tenant's (docs/adr/0023-whose-names.md).

A role's names are those of its tenant, so no role of another can take, see or lock one. A role that was granted
nothing of the kind anywhere has no names: whatever it asks for, it is told that it may not, and so learns nothing.
Superusers, and everybody where authorisation is off, use the names as they are, and `tenant/name` for a tenant's.

What roles may do with exchanges: AMQP's configure, write and read in the words of Weir's grants.

Write is PRODUCE, read is CONSUME, configure is both of them, or to administer the tenant, unless the role was
given patterns of what it may configure. They are asked for on the name of the exchange as if it were a topic's,
as RabbitMQ's patterns of names are for queues and exchanges alike; so a grant on that name, on the namespace or
on the tenant counts. All that maps one on the other is here.

Lists of topics as gateways watch them: for a role, and for as long as it may know which topics there are.

Who somebody is, and what they may do.

Both questions are answered from memory. A grant taken back and a token run out also end what is under way:
`Authoriser.revision` grows with every change, `Authoriser.change` waits for one, `Authenticator.expiry` for the
end of a token.
"""

from collections.abc import Mapping, Set

from weir.broker.api.broker import TopicListWatch
from weir.broker.api.security import Guard, Scope
from weir.broker.metadata.grants import allows, allows_configure, allows_key
from weir.broker.metadata.registry import Registry
from weir.broker.security.authentication import SecuritySettings
from weir.model.errors import InvalidNameError, NotAuthorisedError
from weir.model.exchanges import DEFAULT_EXCHANGE, Binding, Exchange, ExchangeType
from weir.model.queues import queue_of_topic, topic_of_queue, vhost_of
from weir.model.registry import Action
from weir.model.topics import DEFAULT_NAMESPACE, Domain, NamespaceName, TopicName, check_unmarked

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


class GuardedTopicLists:
    """Fills `api.TopicLists`."""

    def __init__(self, registry: Registry, guard: Guard) -> None:
        self._registry = registry
        self._guard = guard

    async def watch_topics(
        self,
        namespace: NamespaceName,
        *,
        role: str,
        pattern: str | None = None,
        domain: Domain | None = None,
        known_hash: str = "",
    ) -> TopicListWatch:
        """NotAuthorisedError. A role whose grant is taken back hears nothing more; if it is given again, all that
        has changed since."""
        self._guard.check_listing(role, namespace)

        def may_see() -> bool:
            try:
                self._guard.check_listing(role, namespace)
            except NotAuthorisedError:
                return False
            return True

        return await self._registry.watch_topics(
            namespace, pattern=pattern, domain=domain, known_hash=known_hash, may_see=may_see
        )


class Authoriser:
    """Decides what a role may do: superusers, and users that are administrators, everything, administrators of a
    tenant everything in it, others what they were granted on the topic, its namespace or its tenant."""

    def __init__(self, registry: Registry, settings: SecuritySettings) -> None:
        self._registry = registry
        self._on = settings.authorisation
        self._open = not settings.authentication and not settings.authorisation
        self._superusers = frozenset(settings.superusers)
        #: Whose the names of groups, transactional ids and sinks are; for roles that are no superusers.
        self.names = NameOwners(registry)

    @property
    def revision(self) -> int:
        """Grows whenever an answer may have changed: cheap to compare before each use of an old answer."""
        return self._registry.access_revision

    async def change(self, seen: int) -> int:
        """Wait until `revision` is no longer `seen`; answers what it is."""
        return await self._registry.access_change(seen)

    # --- questions ----------------------------------------------------------------------------------------------

    def may(self, role: str, action: Action, scope: Scope) -> bool:
        """Whether the role may do this with a tenant (by name), a namespace or a topic."""
        return (
            self.may_administer(role, scope)
            or any(self._registry.grants.on(level).allows(role, action) for level in _levels(scope))
            or (isinstance(scope, TopicName) and self._pattern_allows(role, action, scope))
        )

    def _pattern_allows(self, role: str, action: Action, topic: TopicName) -> bool:
        patterns = self._registry.grants.on(topic.namespace).patterns.get(role)
        return patterns is not None and allows(patterns, action, queue_of_topic(topic.base))

    def may_configure(self, role: str, scope: Scope) -> bool:
        """Whether the role may make and delete a queue or an exchange: what it was permitted by patterns says so,
        else it takes both to produce and to consume."""
        if not isinstance(scope, str):
            namespace = scope if isinstance(scope, NamespaceName) else scope.namespace
            patterns = self._registry.grants.on(namespace).patterns.get(role)
            if patterns is not None and not self.may_administer(role, scope):
                name = queue_of_topic(scope.base) if isinstance(scope, TopicName) else ""
                return allows_configure(patterns, name)
        return self.may(role, Action.PRODUCE, scope) and self.may(role, Action.CONSUME, scope)

    def may_look(self, role: str, scope: Scope) -> bool:
        """Whether the role may know of it: it may produce or consume there, of a namespace with some names at
        least."""
        if self.may(role, Action.PRODUCE, scope) or self.may(role, Action.CONSUME, scope):
            return True
        patterns = self._registry.grants.on(scope).patterns.get(role) if isinstance(scope, NamespaceName) else None
        return patterns is not None and bool(patterns.somewhere)

    def may_monitor(self, role: str) -> bool:
        """Whether the role may look at everything, whatever it may do."""
        if self.is_superuser(role):
            return True
        user = self._registry.users.find(role)
        return user is not None and user.monitors

    def may_administer(self, role: str, scope: Scope) -> bool:
        """Whether the role may change policies, create and delete topics, grant, and so on."""
        if self.is_superuser(role):
            return True
        tenant = self._registry.tenants.find(_tenant_of(scope))
        return tenant is not None and role in tenant.admin_roles

    def may_set_policies(self, role: str, namespace: NamespaceName) -> bool:
        """Of queues and exchanges: administrators of the tenant, and users with RabbitMQ's tag `policymaker` who
        may use the namespace."""
        if self.may_administer(role, namespace):
            return True
        user = self._registry.users.find(role)
        return user is not None and user.makes_policies and self.may_look(role, namespace)

    def is_superuser(self, role: str) -> bool:
        return not self._on or self._named_superuser(role)

    def _named_superuser(self, role: str) -> bool:
        if role in self._superusers:
            return True
        user = self._registry.users.find(role)
        return user is not None and user.administrator

    def may_see_machine(self, role: str) -> bool:
        """Whether the role may know paths of this machine: superusers by name only, unless nobody is asked who
        they are. A token is no reason to be told, also where every role may do everything."""
        return self._open or self._named_superuser(role)

    # --- demands ------------------------------------------------------------------------------------------------

    def check(self, role: str, action: Action, scope: Scope) -> None:
        """NotAuthorisedError unless the role may do this."""
        if not self.may(role, action, scope):
            raise _denied(role, action.value, scope)

    def check_stored_target(self, source: TopicName, target: TopicName) -> None:
        """NotAuthorisedError if no role that can store a policy on `source` may produce to `target`: whoever
        stored it is not known. Administrators of a tenant may produce in all of it. Where no role but superusers
        can store anything, a superuser did."""
        if not self._on or source.namespace.tenant == target.namespace.tenant:
            return
        roles = self._storing_roles(source)
        if roles and not any(self.may(role, Action.PRODUCE, target) for role in roles):
            raise NotAuthorisedError(
                f"no administrator of tenant {source.namespace.tenant}, nor role that may consume {source}, may "
                f"produce to {target}",
                hint=f"grant 'produce' on {target.namespace} to one of these roles, or remove the policy",
            )

    def _storing_roles(self, topic: TopicName) -> set[str]:
        """Roles that can store a policy on a topic or one of its subscriptions; not all superusers are among
        them."""
        tenant = self._registry.tenants.find(topic.namespace.tenant)
        levels = [self._registry.grants.on(level) for level in _levels(topic)]
        named = {role for grants in levels for role in (*grants.roles, *grants.patterns)}
        return {role for role in named if self.may(role, Action.CONSUME, topic)} | {
            *(() if tenant is None else tenant.admin_roles)
        }

    def check_key(self, role: str, action: Action, namespace: NamespaceName, exchange: str, key: str) -> None:
        """NotAuthorisedError if the role may not publish to a topic exchange, or bind from it, with this key."""
        patterns = self._registry.grants.on(namespace).keys.get(role) if self._on else None
        said = None if patterns is None else patterns.get(exchange)
        if said is None:
            return
        if not allows_key(said, action, key, {"username": role, "vhost": vhost_of(namespace)}):
            raise NotAuthorisedError(
                f"{role!r} may not {action.value} with the routing key {key[:80]!r} of exchange {exchange[:80]!r}",
                hint="ask for a topic permission",
            )

    def check_configure(self, role: str, scope: Scope) -> None:
        """NotAuthorisedError unless the role may make and delete queues or exchanges of this name."""
        if not self.may_configure(role, scope):
            raise _denied(role, "configure", scope)

    def check_lookup(self, role: str, scope: Scope) -> None:
        """To find a topic, or list a namespace's, one must be able to produce or consume there."""
        if not self.may_look(role, scope):
            raise _denied(role, "look up", scope)

    def check_admin(self, role: str, scope: Scope) -> None:
        """NotAuthorisedError unless the role administers the tenant that this is, or is in."""
        if not self.may_administer(role, scope):
            raise _denied(role, "administer", scope)

    def check_superuser(self, role: str) -> None:
        """For what concerns the whole cluster: tenants, brokers."""
        if not self.is_superuser(role):
            raise NotAuthorisedError(f"{role!r} is not a superuser")


def _levels(scope: Scope) -> tuple[Scope, ...]:
    """The scope and those above it."""
    if isinstance(scope, str):
        return (scope,)
    if isinstance(scope, NamespaceName):
        return (scope, scope.tenant)
    return (scope, scope.namespace, scope.namespace.tenant)


def _tenant_of(scope: Scope) -> str:
    if isinstance(scope, str):
        return scope
    return (scope.namespace if isinstance(scope, TopicName) else scope).tenant


def _denied(role: str, what: str, scope: Scope) -> NotAuthorisedError:
    return NotAuthorisedError(f"{role!r} may not {what} on {scope}", hint="ask for a grant")


class TopicGuard:
    """An authoriser as topics ask it."""

    def __init__(self, authoriser: Authoriser) -> None:
        self._authoriser = authoriser

    @property
    def revision(self) -> int:
        return self._authoriser.revision

    async def change(self, seen: int) -> int:
        return await self._authoriser.change(seen)

    def check(
        self, role: str, topic: TopicName, action: Action | None, *, subscription: str | None = None
    ) -> None:
        """NotAuthorisedError if the role may not; without an action: whether it may know of the topic at all."""
        if action is None:
            self._authoriser.check_lookup(role, topic)
        else:
            self._authoriser.check(role, action, topic)

    def check_policies(self, role: str, namespace: NamespaceName) -> None:
        """NotAuthorisedError if the role may not set policies of queues and exchanges."""
        if not self._authoriser.may_set_policies(role, namespace):
            raise _denied(role, "set policies", namespace)

    def check_configure(self, role: str, topic: TopicName) -> None:
        """NotAuthorisedError if the role may not make or delete queues of this name."""
        self._authoriser.check_configure(role, topic)

    def check_listing(self, role: str, namespace: NamespaceName) -> None:
        """NotAuthorisedError if the role may not know which topics there are."""
        self._authoriser.check_lookup(role, namespace)

    def check_admin(self, role: str, namespace: NamespaceName) -> None:
        """NotAuthorisedError if the role may not say what holds for all of a namespace."""
        self._authoriser.check_admin(role, namespace)

    def check_stored_target(self, source: TopicName, target: TopicName) -> None:
        """NotAuthorisedError if no role that can store a policy on `source` may produce to `target`."""
        self._authoriser.check_stored_target(source, target)


class ExchangeAccess:
    """Every check raises NotAuthorisedError."""

    def __init__(self, authoriser: Authoriser) -> None:
        self._authoriser = authoriser

    def check_configure(self, role: str, namespace: NamespaceName, name: str) -> None:
        self._authoriser.check_configure(role, _scope(namespace, name))

    def check_write(self, role: str, namespace: NamespaceName, name: str) -> None:
        self._authoriser.check(role, Action.PRODUCE, _scope(namespace, name))

    def check_read(self, role: str, namespace: NamespaceName, name: str) -> None:
        self._authoriser.check(role, Action.CONSUME, _scope(namespace, name))

    def check_declare(self, role: str, namespace: NamespaceName, exchange: Exchange) -> None:
        """Configure; with an alternate, whose messages come from here, also write there."""
        self.check_configure(role, namespace, exchange.name)
        alternate = exchange.alternate
        if isinstance(alternate, str):
            self.check_write(role, namespace, alternate)

    def check_bind(self, role: str, namespace: NamespaceName, binding: Binding) -> None:
        """For unbinding, too: write on the destination, read on the source."""
        self.check_write(role, namespace, binding.destination.name)
        self.check_read(role, namespace, binding.source)

    def check_key(self, role: str, namespace: NamespaceName, exchange: Exchange, key: str, action: Action) -> None:
        """Topic permissions, which are for topic exchanges alone."""
        if exchange.type is ExchangeType.TOPIC:
            self._authoriser.check_key(role, action, namespace, exchange.name, key)

    def check_publish(self, role: str, namespace: NamespaceName, exchange: str) -> None:
        """Write; for the default exchange nothing, since the queue is asked."""
        if exchange != DEFAULT_EXCHANGE:
            self.check_write(role, namespace, exchange)


def _scope(namespace: NamespaceName, name: str) -> Scope:
    """The topic of this name; the namespace if no topic can have it."""
    try:
        return topic_of_queue(namespace, name).base
    except InvalidNameError:
        return namespace
