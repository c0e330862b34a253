"""Lists of topics as gateways watch them: for a role, and for as long as it may know which topics there are."""

from weir.broker.api import Guard, TopicListWatch
from weir.broker.registry.registry import Registry
from weir.model.errors import NotAuthorisedError
from weir.model.topics import Domain, NamespaceName


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
