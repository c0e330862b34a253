"""The policies of one namespace: kept in its record, so that they come and go with it."""

from collections.abc import Callable, Mapping
from typing import Protocol

from weir.broker.api import Guard, NamespaceExchanges
from weir.broker.queues.arguments import kind_of
from weir.broker.queues.declared import policed, policies_of
from weir.broker.queues.policies import POLICIES_PROPERTY, PolicyTable, check_policy
from weir.broker.registry.registry import Registry
from weir.model.queues import QueueDeclaration, QueuePolicy, QueueRules, vhost_of
from weir.model.topics import NamespaceName


class PolicedExchanges(NamespaceExchanges, Protocol):
    """Exchanges that can be told what policies say of them."""

    def police(self, alternate_of: Callable[[str], str | None]) -> None: ...


class NamespacePolicies:
    def __init__(self, namespace: NamespaceName, registry: Registry, guard: Guard) -> None:
        self._namespace = namespace
        self._vhost = vhost_of(namespace)
        self._registry = registry
        self._guard = guard

    @property
    def table(self) -> PolicyTable:
        return policies_of(self._registry, self._namespace)

    def policy_of(self, declaration: QueueDeclaration) -> QueuePolicy | None:
        """The one that holds for a queue."""
        table = self.table
        return table.of_queue(declaration.name, kind_of(declaration)) if table.policies else None

    def rules_of(self, declaration: QueueDeclaration) -> QueueRules:
        """What its arguments and policies say. QueueArgumentError."""
        return policed(declaration, self.table, self._vhost)

    async def set(self, role: str, policy: QueuePolicy) -> None:
        """NotAuthorisedError, QueueArgumentError."""
        check_policy(policy)
        await self._change(role, lambda table: table.with_policy(policy), operator=policy.operator)

    async def clear(self, role: str, name: str, *, operator: bool) -> None:
        await self._change(role, lambda table: table.without(name, operator=operator), operator=operator)

    async def _change(self, role: str, change: Callable[[PolicyTable], PolicyTable], *, operator: bool) -> None:
        if operator:
            self._guard.check_admin(role, self._namespace)
        else:
            self._guard.check_policies(role, self._namespace)

        def changed(properties: Mapping[str, str]) -> Mapping[str, str]:
            table = change(PolicyTable.decode(properties.get(POLICIES_PROPERTY)))
            others = {name: text for name, text in properties.items() if name != POLICIES_PROPERTY}
            return {**others, POLICIES_PROPERTY: table.encode()} if table.policies else others

        await self._registry.change_properties(self._namespace, changed)
