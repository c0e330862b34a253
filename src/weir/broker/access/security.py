"""Who somebody is, and what they may do.

Both questions are answered from memory. A grant taken back and a token run out also end what is under way:
`Authoriser.revision` grows with every change, `Authoriser.change` waits for one, `Authenticator.expiry` for the
end of a token.
"""

import hmac
from dataclasses import dataclass

from weir.broker.access.access_keys import is_recent, secret_keys, sign
from weir.broker.access.name_patterns import allows, allows_configure, allows_key
from weir.broker.access.owners import NameOwners
from weir.broker.access.passwords import password_fits
from weir.broker.access.tokens import TokenVerifier
from weir.broker.api import Identity, Scope, Users
from weir.broker.registry.registry import Registry
from weir.model.errors import NotAuthenticatedError, NotAuthorisedError
from weir.model.queues import queue_of_topic, vhost_of
from weir.model.registry import Action
from weir.model.topics import NamespaceName, TopicName
from weir.runtime.interfaces import Clock

_MAX_CREDENTIALS_BYTES = 128 * 1024
#: No timer waits for longer at once; a year is far enough.
_LONGEST_SLEEP_S = 86_400.0
_DOTS_OF_A_TOKEN = 2


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """Standalone asks nobody who they are, and lets everybody do everything."""

    authentication: bool = False
    authorisation: bool = False
    #: Everybody's role while authentication is off.
    anonymous_role: str = "anonymous"
    #: Whether, with authentication on, one may come without credentials, as the anonymous role.
    allow_anonymous: bool = False
    #: Roles that may do everything.
    superusers: tuple[str, ...] = ()


class Authenticator:
    """Turns credentials into an identity."""

    def __init__(
        self,
        clock: Clock,
        settings: SecuritySettings,
        *,
        tokens: TokenVerifier | None = None,
        users: Users | None = None,
        access_secret: bytes = b"",
    ) -> None:
        """`access_secret`: what access keys are made of, beside the secret of tokens."""
        self._clock = clock
        self._settings = settings
        self._tokens = tokens
        self._users = users
        signing = () if tokens is None else tokens.secrets
        self._access_secrets = [secret for secret in (access_secret, *signing) if secret]

    @property
    def methods(self) -> tuple[str, ...]:
        """What a client can authenticate by."""
        offered = (("token", self._tokens), ("password", self._users))
        return (
            *(method for method, by in offered if by is not None),
            "tls",
            *(("none",) if self._anonymous_allowed else ()),
        )

    @property
    def _anonymous_allowed(self) -> bool:
        return not self._settings.authentication or self._settings.allow_anonymous

    def authenticate(self, method: str, credentials: bytes, *, certificate: bytes | None = None) -> Identity:
        """Who is behind the credentials; NotAuthenticatedError.

        `credentials` of the method `password`: a name, a zero byte, and a user's password, the secret key of an
        access key, or a token, whose role counts then rather than the name. `certificate`: what the client proved
        to own in the TLS handshake, as DER; never anything that it merely sent. A client that names no method is
        who its certificate says.
        """
        if not self._settings.authentication:
            return Identity(self._settings.anonymous_role)
        if len(credentials) > _MAX_CREDENTIALS_BYTES:
            raise NotAuthenticatedError("the credentials are too long")
        ways = {"token": self._by_token, "password": self._by_password, "signature": self._by_signature}
        if method in ways:
            return ways[method](credentials)
        match method:
            case "tls":
                return self._by_certificate(certificate)
            case "" | "none":
                if certificate is not None:
                    return self._by_certificate(certificate)
                if self._anonymous_allowed:
                    return Identity(self._settings.anonymous_role)
                raise NotAuthenticatedError("credentials are needed", hint="connect with a token")
        raise NotAuthenticatedError(
            f"authentication by {method[:40]!r} is not known here", hint=f"use {', '.join(self.methods)}"
        )

    def _by_token(self, credentials: bytes) -> Identity:
        if self._tokens is None:
            raise NotAuthenticatedError("this broker takes no tokens", hint="configure a key for them")
        speaker = self._tokens.verify(credentials, now_ms=self._clock.wall_ms())
        return Identity(speaker.role, speaker.expires_ms)

    def _by_signature(self, credentials: bytes) -> Identity:
        """An access key (a role), the moment that was signed, and the signature: zero bytes between them."""
        role, moment, signature = [*credentials.split(b"\0"), b"", b""][:3]
        name = role.decode("utf-8", "replace")
        if not any(
            hmac.compare_digest(sign(key, moment).encode(), signature)
            for key in secret_keys(self._access_secrets, name)
        ):
            raise NotAuthenticatedError(
                "the access key or the signature is wrong", hint=f"weir token access-key {name[:80]}"
            )
        if not is_recent(moment.decode("ascii", "replace"), self._clock.wall_ms()):
            raise NotAuthenticatedError("the signature is of another day", hint="is the client's clock right?")
        return Identity(role.decode("utf-8", "replace"))

    def _by_password(self, credentials: bytes) -> Identity:
        name, _, password = credentials.partition(b"\0")
        refused = NotAuthenticatedError("the name or the password is wrong")
        if self._tokens is not None and password.count(b".") == _DOTS_OF_A_TOKEN:
            try:
                return self._by_token(password)
            except NotAuthenticatedError as no_token:
                refused = no_token  # a password may have dots, too
        said = name.decode("utf-8", "replace")
        if any(hmac.compare_digest(key.encode(), password) for key in secret_keys(self._access_secrets, said)):
            return Identity(said)
        found = None if self._users is None else self._users.find(said)
        if password_fits(found, password):
            return Identity(said)
        raise refused

    def _by_certificate(self, certificate: bytes | None) -> Identity:
        if certificate is None:
            raise NotAuthenticatedError("no client certificate was shown", hint="connect by TLS with one")
        return identity_of_certificate(certificate, now_ms=self._clock.wall_ms())

    def expired(self, identity: Identity) -> bool:
        """Whether its credentials have run out."""
        return identity.expires_ms is not None and self._clock.wall_ms() >= identity.expires_ms

    async def expiry(self, identity: Identity) -> None:
        """Wait until its credentials have run out; for ever if they never do."""
        while not self.expired(identity):
            left_s = (
                _LONGEST_SLEEP_S
                if identity.expires_ms is None
                else (identity.expires_ms - self._clock.wall_ms()) / 1000
            )
            # The wall clock may be set meanwhile, so it is asked again and again.
            await self._clock.sleep(min(max(left_s, 0.001), _LONGEST_SLEEP_S))


def identity_of_certificate(certificate: bytes, *, now_ms: int) -> Identity:
    """The common name in a verified client certificate (DER), until the certificate ends."""
    from cryptography.x509 import load_der_x509_certificate
    from cryptography.x509.oid import NameOID

    try:
        parsed = load_der_x509_certificate(certificate)
        names = parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        expires_ms = int(parsed.not_valid_after_utc.timestamp() * 1000)
    except ValueError as bad:
        raise NotAuthenticatedError(f"the client certificate cannot be read: {bad}") from None
    if len(names) != 1 or not names[0].value:
        raise NotAuthenticatedError("the client certificate has no common name, or several")
    if now_ms >= expires_ms:
        raise NotAuthenticatedError("the client certificate has expired", hint="renew it")
    name = names[0].value
    return Identity(name if isinstance(name, str) else name.decode("utf-8", "replace"), expires_ms)


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
