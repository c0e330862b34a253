"""Isolation policies of a cluster: which brokers are kept for which namespaces, in Pulsar's form."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from msgspec import Struct, field

from weir.admin.brokers import broker_named, pulsar_id
from weir.admin.context import AdminContext
from weir.admin.names import BAD_NAME, V2
from weir.admin.routing import Call, Query, RefusedError, Route
from weir.model.errors import ClusterNotFoundError, InvalidNameError
from weir.model.isolation import is_named
from weir.model.policies import IsolationPolicy
from weir.model.registry import BrokerInfo, Cluster
from weir.model.topics import check_entity_name

_POLICIES = f"{V2}/clusters/{{cluster}}/namespaceIsolationPolicies"
_ONE = f"{_POLICIES}/{{policy}}"
_TAG = "clusters"
_ABOUT = {404: "no such policy or broker", 412: "no such cluster", **BAD_NAME}
_MIN_LIMIT, _USAGE_THRESHOLD = "min_limit", "usage_threshold"
#: Policies that a cluster may have: all of them are one record, which every broker has in memory.
_MOST = 256


class AutoFailoverPolicyData(Struct):
    """When `secondary` serve as well: with fewer than `min_limit` primary brokers there."""

    policy_type: Literal["min_available"]
    parameters: dict[str, str | int] = field(default_factory=dict)


class NamespaceIsolationData(Struct):
    """Regular expressions of whole names."""

    namespaces: list[str] = field(default_factory=list)
    primary: list[str] = field(default_factory=list)
    secondary: list[str] | None = field(default_factory=list)
    auto_failover_policy: AutoFailoverPolicyData | None = None


class BrokerNamespaceIsolationData(Struct):
    """A broker and the policy that means it."""

    brokerName: str
    policyName: str | None = None
    primary: bool = False
    namespaceRegex: list[str] = field(default_factory=list)


class IsolationPolicies:
    """For superusers only."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                _POLICIES,
                "The isolation policies of a cluster.",
                self._list,
                answer=dict[str, NamespaceIsolationData],
                refusals={404: "no such cluster", **BAD_NAME},
                tag=_TAG,
            ),
            Route(
                "GET",
                f"{_POLICIES}/brokers",
                "The brokers, and the isolation policies that mean them.",
                self._brokers,
                answer=list[BrokerNamespaceIsolationData],
                refusals=_ABOUT,
                tag=_TAG,
            ),
            Route(
                "GET",
                f"{_POLICIES}/brokers/{{broker}}",
                "A broker, and the isolation policies that mean it.",
                self._broker,
                answer=BrokerNamespaceIsolationData,
                refusals=_ABOUT,
                tag=_TAG,
            ),
            Route(
                "GET",
                _ONE,
                "Get an isolation policy.",
                self._get,
                answer=NamespaceIsolationData,
                refusals=_ABOUT,
                tag=_TAG,
            ),
            Route(
                "POST",
                _ONE,
                "Set an isolation policy. What is on other brokers is handed over by the leader of balance.",
                self._set,
                body=NamespaceIsolationData,
                query=(
                    Query("unloadBundles", bool, "has no effect: nothing is unloaded, all is handed over", True),
                ),
                refusals={400: "not a policy", **_ABOUT},
                tag=_TAG,
            ),
            Route("DELETE", _ONE, "Delete an isolation policy.", self._delete, refusals=_ABOUT, tag=_TAG),
        ]

    async def _list(self, call: Call) -> dict[str, NamespaceIsolationData]:
        self._context.authoriser.check_superuser(call.role)
        cluster = self._context.registry.cluster(check_entity_name(call.path["cluster"], "cluster"))
        return {name: _shown(policy) for name, policy in sorted(cluster.isolation.items())}

    async def _get(self, call: Call) -> NamespaceIsolationData:
        name = call.path["policy"]
        found = self._cluster(call).isolation.get(name)
        if found is None:
            raise RefusedError(404, f"there is no isolation policy {name[:80]!r}")
        return _shown(found)

    async def _set(self, call: Call) -> None:
        cluster, name = self._cluster(call), check_entity_name(call.path["policy"], "isolation policy")
        policy = _policy(call.body)

        def change(now: Cluster) -> Cluster:
            policies = {**now.isolation, name: policy}
            if len(policies) > _MOST:
                raise RefusedError(412, f"a cluster has at most {_MOST} isolation policies")
            return replace(now, isolation=policies)

        await self._context.registry.change_cluster(cluster.name, change)

    async def _delete(self, call: Call) -> None:
        """One that is not there is fine, as with Pulsar."""
        cluster, name = self._cluster(call), call.path["policy"]
        if name in cluster.isolation:
            await self._context.registry.change_cluster(
                cluster.name,
                lambda now: replace(
                    now, isolation={key: one for key, one in now.isolation.items() if key != name}
                ),
            )

    async def _brokers(self, call: Call) -> list[BrokerNamespaceIsolationData]:
        policies = self._cluster(call).isolation
        return [_meant(broker, policies) for broker in self._context.broker.brokers()]

    async def _broker(self, call: Call) -> BrokerNamespaceIsolationData:
        policies = self._cluster(call).isolation
        return _meant(broker_named(self._context, call.path["broker"]), policies)

    def _cluster(self, call: Call) -> Cluster:
        self._context.authoriser.check_superuser(call.role)
        try:
            return self._context.registry.cluster(check_entity_name(call.path["cluster"], "cluster"))
        except ClusterNotFoundError as missing:
            raise RefusedError(412, missing.what, hint=missing.hint) from None


def _policy(body: NamespaceIsolationData) -> IsolationPolicy:
    """400 for what is none."""
    failover = body.auto_failover_policy
    if not body.namespaces or not body.primary or failover is None:
        raise RefusedError(400, "an isolation policy has namespaces, primary and auto_failover_policy")
    parameters = failover.parameters
    try:
        return IsolationPolicy(
            tuple(body.namespaces),
            tuple(body.primary),
            tuple(body.secondary or ()),
            _natural(parameters, _MIN_LIMIT),
            _natural(parameters, _USAGE_THRESHOLD),
        )
    except InvalidNameError as bad:
        raise RefusedError(400, bad.what, hint=bad.hint) from None


def _natural(parameters: Mapping[str, str | int], name: str) -> int:
    said = str(parameters.get(name, ""))
    if not said.isdecimal() or len(said) > 9:
        raise RefusedError(
            400, f"min_available needs {name}, a whole number", hint="min_limit=1,usage_threshold=80"
        )
    return int(said)


def _shown(policy: IsolationPolicy) -> NamespaceIsolationData:
    parameters: dict[str, str | int] = {
        _MIN_LIMIT: str(policy.min_limit),
        _USAGE_THRESHOLD: str(policy.usage_threshold),
    }
    return NamespaceIsolationData(
        list(policy.namespaces),
        list(policy.primary),
        list(policy.secondary),
        AutoFailoverPolicyData("min_available", parameters),
    )


def _meant(broker: BrokerInfo, policies: Mapping[str, IsolationPolicy]) -> BrokerNamespaceIsolationData:
    found = BrokerNamespaceIsolationData(pulsar_id(broker))
    for name, policy in sorted(policies.items()):
        primary = is_named(policy.primary, broker)
        if primary or is_named(policy.secondary, broker):
            found.namespaceRegex += policy.namespaces
            found.policyName, found.primary = name, primary
    return found
