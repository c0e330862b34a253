"""What roles were granted on tenants, namespaces and topics."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set

from weir.broker.access.name_patterns import check_pattern
from weir.broker.api import Scope
from weir.broker.registry.mirror import Mirror
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec
from weir.model.registry import Action, Grants, KeyPatterns, NamePatterns, check_role
from weir.model.topics import NamespaceName
from weir.runtime import Runtime
from weir.wire.registry import decode_grants, encode_grants

GRANTS: Codec[Grants] = Codec(encode_grants, decode_grants)

_NONE = Grants()


class GrantTable:
    """Every grant. One can be made before the topic that it is on: a client may create that later."""

    def __init__(self, meta: MetaStore, runtime: Runtime, on_change: Callable[[str, bool], None]) -> None:
        self._meta = meta
        self._on_change = on_change
        self._mirror = Mirror(meta, runtime, keys.GRANTS, GRANTS, self._changed)
        #: Where each role has grants, and of how many of them each action is part: made when somebody asks, from
        #: the keys that have changed since somebody did.
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
        """What was granted on exactly this; nothing from the levels above."""
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
        """What the role was granted at least somewhere in which tenants: on these, or on something in them."""
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
        """Let the role do exactly these on it, instead of what it was granted there before."""
        check_role(role)
        wanted = tuple(dict.fromkeys(actions))

        await self._mirror.upsert(_key(scope), lambda now: (now or _NONE).granted(role, wanted))

    async def permit(self, namespace: NamespaceName, role: str, patterns: NamePatterns) -> None:
        """Let the role do what patterns of names say, instead of what it was granted on the namespace before."""
        check_role(role)
        for pattern in (patterns.configure, patterns.write, patterns.read):
            check_pattern(pattern)
        await self._mirror.upsert(_key(namespace), lambda now: (now or _NONE).permitted(role, patterns))

    async def permit_keys(
        self, namespace: NamespaceName, role: str, exchange: str, patterns: KeyPatterns | None
    ) -> None:
        """Let the role use routing keys of a topic exchange only as patterns say; None: as it likes."""
        check_role(role)
        if patterns is not None:
            check_pattern(patterns.write)
            check_pattern(patterns.read)
        await self._mirror.upsert(_key(namespace), lambda now: (now or _NONE).with_keys(role, exchange, patterns))

    async def revoke(self, scope: Scope, role: str) -> None:
        """Take back what the role was granted on it; fine if that was nothing."""
        await self._mirror.upsert(_key(scope), lambda now: (now or _NONE).revoked(role))

    async def forget(self, scope: Scope) -> None:
        """Drop every grant on it and on what is below it: it was deleted, and what gets its name is another."""
        key = _key(scope)
        doomed = await self._meta.list(key + "/")
        own = await self._meta.get(key)
        for item in [*doomed.items, *([own] if own is not None else [])]:
            await self._mirror.delete(item.key, expect=item.version)


def _key(scope: Scope) -> str:
    if isinstance(scope, str):
        return keys.tenant_grants(scope)
    return keys.namespace_grants(scope) if isinstance(scope, NamespaceName) else keys.topic_grants(scope)
