"""Grants of roles on tenants, namespaces and topics; users with passwords; the tenant of each role.

All of these are stored in the metadata and mirrored in the memory of every broker.

Name patterns are those of RabbitMQ. RE2 matches in time linear in the name, but does not support look-around,
which RabbitMQ patterns may use: Python's `re` matches those. Administrators write the patterns, and names are
short.

Password hashes are those of RabbitMQ, so that its hashes can be imported: salted digests, compared in constant
time. The digests are fast, so an attacker with the hash can guess a short password: only superusers may read
hashes.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from functools import lru_cache
from urllib.parse import quote

from weir.broker.api.broker import Pattern
from weir.broker.api.security import Scope
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.mirror import Mirror
from weir.meta.update import Codec
from weir.model.errors import MetaConflictError, NotAllowedError
from weir.model.registry import (
    Action,
    Grants,
    KeyPatterns,
    NamePatterns,
    PasswordHashing,
    User,
    check_role,
    check_user,
)
from weir.model.topics import NamespaceName
from weir.runtime.interfaces import Runtime
from weir.wire.registry import decode_grants, decode_user, encode_grants, encode_user

#: In RabbitMQ, an empty pattern matches no name.
_NAME_PATTERNS_NONE = "^$"
_LOOKS_AROUND = ("(?=", "(?!", "(?<=", "(?<!")


def check_pattern(pattern: str) -> None:
    """NotAllowedError if the pattern is invalid."""
    _found_in(pattern)


def allows(patterns: NamePatterns, action: Action, name: str) -> bool:
    """Whether the patterns permit the action on an object of this name."""
    if action is Action.PRODUCE:
        return _found_in(patterns.write)(name)
    return action is Action.CONSUME and _found_in(patterns.read)(name)


def allows_configure(patterns: NamePatterns, name: str) -> bool:
    return _found_in(patterns.configure)(name)


def allows_key(patterns: KeyPatterns, action: Action, key: str, said: Mapping[str, str]) -> bool:
    """Whether the patterns permit a routing key. `said`: values of the variables in the patterns."""
    pattern = patterns.write if action is Action.PRODUCE else patterns.read
    for name, text in said.items():
        pattern = pattern.replace(f"{{{name}}}", re.escape(text))
    return _found_in(pattern)(key)


@lru_cache(1_000)
def _found_in(pattern: str) -> Callable[[str], bool]:
    try:
        return Pattern(pattern or _NAME_PATTERNS_NONE).found_in
    except NotAllowedError:
        if not any(mark in pattern for mark in _LOOKS_AROUND):
            raise
        return _searched(pattern)


def _searched(pattern: str) -> Callable[[str], bool]:
    try:
        compiled = re.compile(pattern)
    except re.error as bad:
        raise NotAllowedError(f"{pattern[:80]!r} is not a valid pattern: {bad}") from None
    return lambda name: compiled.search(name) is not None


TENANT_NAME: Codec[str] = Codec(str.encode, lambda data: bytes(data).decode(errors="replace"))


class RoleTenants:
    """The tenant of every role that has used a name of a consumer group, a transactional id or a sink.

    Stored at the first use, so that later grants do not move the role's names to another tenant."""

    def __init__(self, meta: MetaStore, runtime: Runtime) -> None:
        self._mirror = Mirror(meta, runtime, keys.ROLE_TENANTS, TENANT_NAME)

    async def start(self) -> None:
        await self._mirror.start()

    async def close(self) -> None:
        await self._mirror.close()

    def find(self, role: str) -> str | None:
        return self._mirror.get(_role_tenants_key(role))

    async def note(self, role: str, tenant: str, *, still: Callable[[str], bool]) -> str:
        """Store and return the role's tenant: the one stored earlier, by any broker, if it is `still` valid; else
        `tenant`."""

        def noted(before: str | None) -> str:
            return tenant if before is None or not still(before) else before

        return (await self._mirror.upsert(_role_tenants_key(role), noted)).value


def _role_tenants_key(role: str) -> str:
    return keys.ROLE_TENANTS + quote(role, safe="")


_SALT_BYTES = 4
_DIGESTS = {PasswordHashing.SHA256: hashlib.sha256, PasswordHashing.SHA512: hashlib.sha512}
#: Used for unknown users, so that their authentication takes the same time.
_NOBODY = User("", base64.b64encode(bytes(_SALT_BYTES + 32)).decode())


def hash_password(password: bytes, salt: bytes, hashing: PasswordHashing) -> str:
    """The hash of a password, in the format of `User.password_hash`."""
    return base64.b64encode(salt + _DIGESTS[hashing](salt + password).digest()).decode()


def password_fits(user: User | None, password: bytes) -> bool:
    """Whether the password matches the user. An empty password or an unknown user never matches."""
    asked = user or _NOBODY
    kept = _raw(asked.password_hash)
    digest = _DIGESTS[asked.hashing](kept[:_SALT_BYTES] + password).digest()
    same = hmac.compare_digest(kept[_SALT_BYTES:], digest)
    return same and user is not None and bool(password)


def check_hash(password_hash: str, hashing: PasswordHashing) -> str:
    """NotAllowedError if this cannot be the hash of a password."""
    if password_hash and len(_raw(password_hash)) != _SALT_BYTES + _DIGESTS[hashing]().digest_size:
        raise NotAllowedError(
            f"this is not a password hash of {hashing.value}", hint="use base64 of 4 bytes of salt and the digest"
        )
    return password_hash


def _raw(password_hash: str) -> bytes:
    try:
        return base64.b64decode(password_hash, validate=True)
    except (binascii.Error, ValueError):
        return b""


GRANTS: Codec[Grants] = Codec(encode_grants, decode_grants)

_NONE = Grants()


class GrantTable:
    """All grants. A grant on a topic may exist before the topic: a client may create that later."""

    def __init__(self, meta: MetaStore, runtime: Runtime, on_change: Callable[[str, bool], None]) -> None:
        self._meta = meta
        self._on_change = on_change
        self._mirror = Mirror(meta, runtime, keys.GRANTS, GRANTS, self._changed)
        #: For each role, the number of its grants by tenant and action; each read updates it from the keys that
        #: have changed since the last one.
        self._of_roles: dict[str, Counter[tuple[str, Action]]] = {}
        self._counted: dict[str, Grants] = {}
        self._uncounted: dict[str, None] = {}

    def _changed(self, key: str, present: bool) -> None:
        self._uncounted[key] = None
        self._on_change(key, present)

    async def start(self) -> None:
        await self._mirror.start()

    async def close(self) -> None:
        await self._mirror.close()

    def on(self, scope: Scope) -> Grants:
        """Grants on exactly this scope, without those on the levels above."""
        return self._mirror.get(_key(scope)) or _NONE

    def on_topics_of(self, namespace: NamespaceName) -> dict[str, Grants]:
        """The grants on single topics of a namespace, by the topic's full name."""
        prefix = keys.topic_grants_of(namespace)
        found = {}
        for key, grants in self._mirror.items().items():
            if key.startswith(prefix) and grants.roles:
                domain, local = key.removeprefix(prefix).split("/", 1)
                found[f"{domain}://{namespace}/{local}"] = grants
        return found

    def of_role(self, role: str) -> Mapping[str, Set[Action]]:
        """Tenants in which the role has a grant on any level, with the granted actions."""
        for key in self._uncounted:
            self._count(key)
        self._uncounted = {}
        found: dict[str, set[Action]] = {}
        for tenant, action in self._of_roles.get(role, ()):
            found.setdefault(tenant, set()).add(action)
        return found

    def _count(self, key: str) -> None:
        tenant = key.removeprefix(keys.GRANTS).partition("/")[0]
        before, now = self._counted.pop(key, _NONE), self._mirror.get(key) or _NONE
        touched: dict[str, None] = {}
        for role, action in before.somewhere():
            self._of_roles[role][tenant, action] -= 1
            touched[role] = None
        for role, action in now.somewhere():
            self._of_roles.setdefault(role, Counter())[tenant, action] += 1
            touched[role] = None
        for role in touched:
            self._of_roles[role] = +self._of_roles[role]
            if not self._of_roles[role]:
                del self._of_roles[role]
        if now.roles or now.patterns:
            self._counted[key] = now

    async def grant(self, scope: Scope, role: str, actions: Iterable[Action]) -> None:
        """Grant exactly these actions on the scope to the role; replaces its earlier grant there."""
        check_role(role)
        wanted = tuple(dict.fromkeys(actions))

        await self._mirror.upsert(_key(scope), lambda now: (now or _NONE).granted(role, wanted))

    async def permit(self, namespace: NamespaceName, role: str, patterns: NamePatterns) -> None:
        """Grant permissions by name patterns to the role; replaces its earlier grant on the namespace."""
        check_role(role)
        for pattern in (patterns.configure, patterns.write, patterns.read):
            check_pattern(pattern)
        await self._mirror.upsert(_key(namespace), lambda now: (now or _NONE).permitted(role, patterns))

    async def permit_keys(
        self, namespace: NamespaceName, role: str, exchange: str, patterns: KeyPatterns | None
    ) -> None:
        """Restrict the role to routing keys of a topic exchange that match the patterns; None removes the
        restriction."""
        check_role(role)
        if patterns is not None:
            check_pattern(patterns.write)
            check_pattern(patterns.read)
        await self._mirror.upsert(_key(namespace), lambda now: (now or _NONE).with_keys(role, exchange, patterns))

    async def revoke(self, scope: Scope, role: str) -> None:
        """Revoke the role's grants on the scope; does nothing if it has none."""
        await self._mirror.upsert(_key(scope), lambda now: (now or _NONE).revoked(role))

    async def forget(self, scope: Scope) -> None:
        """Delete all grants on a deleted scope and the levels below it: a later object of the name must not
        inherit them."""
        key = _key(scope)
        doomed = await self._meta.list(key + "/")
        own = await self._meta.get(key)
        for item in [*doomed.items, *([own] if own is not None else [])]:
            await self._mirror.delete(item.key, expect=item.version)


def _key(scope: Scope) -> str:
    if isinstance(scope, str):
        return keys.tenant_grants(scope)
    return keys.namespace_grants(scope) if isinstance(scope, NamespaceName) else keys.topic_grants(scope)


USER: Codec[User] = Codec(encode_user, decode_user)

_ATTEMPTS = 40


class UserTable:
    """Fills `api.Users`. `on_change(key, present)`: invalidates cached tags of users."""

    def __init__(self, meta: MetaStore, runtime: Runtime, on_change: Callable[[str, bool], None]) -> None:
        self._runtime = runtime
        self._mirror = Mirror(meta, runtime, keys.USERS, USER, on_change)

    async def start(self) -> None:
        await self._mirror.start()

    async def close(self) -> None:
        await self._mirror.close()

    def names(self) -> list[str]:
        return sorted(user.name for user in self._mirror.items().values())

    def find(self, name: str) -> User | None:
        return self._mirror.get(keys.user(name))

    async def put(self, user: User) -> bool:
        check_user(user)
        check_hash(user.password_hash, user.hashing)
        before: list[User | None] = []

        def changed(now: User | None) -> User:
            before.append(now)
            return now if now == user else user

        await self._mirror.upsert(keys.user(user.name), changed)
        return before[0] is None

    async def delete(self, name: str) -> bool:
        key = keys.user(name)
        for _ in range(_ATTEMPTS):
            found = await self._mirror.refresh(key)
            if found is None:
                return False
            try:
                await self._mirror.delete(key, expect=found.version)
            except MetaConflictError:
                continue  # changed meanwhile
            return True
        raise MetaConflictError(f"user {name[:80]!r} was changed concurrently", hint="try again")

    def hashed(self, password: str) -> str:
        return hash_password(password.encode(), self._runtime.rng.randbytes(4), PasswordHashing.SHA256)
