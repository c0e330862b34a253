"""Isolation policies of a cluster: which brokers are kept for which namespaces, in Pulsar's form.

The cluster for those who look after it: brokers and their load, bundles, bookies; draining and emptying.

Where this Weir and its cluster listen, and where it keeps its data: what a program asks before it starts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from msgspec import Struct, field

from weir.admin.brokers import broker_named, pulsar_id
from weir.admin.context import AdminContext
from weir.admin.names import BAD_NAME, V2
from weir.broker.api.cluster import StorageAdmin
from weir.model.cluster import BrokerLoad, common_features, held_back
from weir.model.errors import ClusterNotFoundError, InvalidNameError
from weir.model.policies import IsolationPolicy
from weir.model.registry import BrokerInfo, Cluster, is_named
from weir.model.topics import check_entity_name
from weir.rest.routes import Call, Query, RefusedError, Route
from weir.wire.peer.calls import AdminCall

_CLUSTER = "/admin/weir/v1/cluster"
_BROKER = f"{_CLUSTER}/brokers/{{broker}}"
_BOOKIE = f"{_CLUSTER}/bookies/{{bookie}}"
_CLUSTER_TAG = "cluster"
_CLUSTER_ABOUT = {
    404: "no such broker",
    412: "it cannot be done now",
    501: "this broker does not look after storage",
}


class LoadBody(Struct, rename="camel"):
    """Per second; `cpu` of one core, `memory` of what it may have."""

    cpu: float
    memory: float
    messages_in: float
    bytes_in: float
    messages_out: float
    bytes_out: float


class ClusterBroker(Struct, rename="camel"):
    """A broker; `load` is null if it does not say."""

    name: str
    node_id: int
    rack: str
    listeners: dict[str, str]
    features: list[str]
    bundles: int
    draining: bool
    load: LoadBody | None


class ClusterBundle(Struct, rename="camel"):
    name: str
    owner: str
    epoch: int


class ClusterBookie(Struct, rename="camel"):
    name: str
    address: str
    rack: str
    state: str
    ledgers: int


class ClusterBody(Struct, rename="camel"):
    """`features`: what all brokers have, and so what is used; `heldBack`: what is not yet, and who lacks it."""

    leader: str
    features: list[str]
    held_back: dict[str, list[str]]
    brokers: list[ClusterBroker]
    bundles: list[ClusterBundle]
    bookies: list[ClusterBookie]
    under_replicated_ledgers: int


class ProgressBody(Struct, rename="camel"):
    bookie: str
    left: int
    problem: str


class ClusterRoutes:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        def broker(verb: str, summary: str, action: object) -> Route:
            return Route("PUT", f"{_BROKER}/{verb}", summary, action, refusals=_CLUSTER_ABOUT, tag=_CLUSTER_TAG)  # type: ignore[arg-type]

        return [
            Route(
                "GET",
                _CLUSTER,
                "The cluster.",
                self._status,
                answer=ClusterBody,
                refusals=_CLUSTER_ABOUT,
                tag=_CLUSTER_TAG,
            ),
            broker("drain", "Have a broker give everything to the others.", self._drain),
            broker("resume", "Have a broker take bundles again.", self._resume),
            Route(
                "PUT",
                f"{_BOOKIE}/decommission",
                "Have a bookie hold nothing; asked again, it goes on.",
                self._decommission,
                answer=ProgressBody,
                refusals=_CLUSTER_ABOUT,
                tag=_CLUSTER_TAG,
            ),
            Route(
                "GET",
                f"{_BOOKIE}/decommission",
                "How much a bookie still holds.",
                self._progress,
                answer=ProgressBody,
                refusals=_CLUSTER_ABOUT,
                tag=_CLUSTER_TAG,
            ),
            Route(
                "DELETE",
                f"{_BOOKIE}/decommission",
                "Let a bookie take ledgers again.",
                self._recommission,
                refusals=_CLUSTER_ABOUT,
                tag=_CLUSTER_TAG,
            ),
        ]

    async def _status(self, call: Call) -> ClusterBody:
        context, storage = self._context, self._storage(call)
        brokers = sorted(context.broker.brokers(), key=lambda info: info.broker_id)
        bundles = context.broker.bundles.all()
        owned = [info.owner for info in bundles]
        loads = [await context.load_of(info.broker_id) for info in brokers]
        return ClusterBody(
            await storage.leader(),
            sorted(common_features(brokers)),
            held_back(brokers),
            [
                ClusterBroker(
                    info.broker_id,
                    info.node_id,
                    info.rack,
                    dict(info.listeners),
                    list(info.features),
                    owned.count(info.broker_id),
                    load.draining if load is not None else self._draining(info.broker_id),
                    None if load is None else _load(load),
                )
                for info, load in zip(brokers, loads, strict=True)
            ],
            [ClusterBundle(str(info.name), info.owner, info.epoch) for info in bundles],
            [
                ClusterBookie(each.bookie_id, each.address, each.rack, each.state, each.ledgers)
                for each in await storage.bookies()
            ],
            await storage.under_replicated(),
        )

    def _draining(self, broker_id: str) -> bool:
        return broker_id == self._context.broker_id and self._context.broker.bundles.draining

    async def _drain(self, call: Call) -> None:
        if await self._here(call, "drain"):
            await self._context.broker.bundles.drain()

    async def _resume(self, call: Call) -> None:
        if await self._here(call, "resume"):
            await self._context.broker.bundles.resume()

    async def _here(self, call: Call, verb: str) -> bool:
        """Whether this broker is meant; another is asked, and has done it."""
        context, name = self._context, call.path["broker"]
        context.authoriser.check_superuser(call.role)
        if name == context.broker_id:
            return True
        if name not in [info.broker_id for info in context.broker.brokers()]:
            raise RefusedError(404, f"there is no broker {name}", hint="see weir cluster status")
        answer = await context.ask_peer(name, AdminCall(call.role, "PUT", f"{_CLUSTER}/brokers/{name}/{verb}"))
        if answer.status >= 300:
            raise RefusedError(answer.status, answer.body.decode(errors="replace")[:500])
        return False

    async def _decommission(self, call: Call) -> ProgressBody:
        found = await self._storage(call).decommission(call.path["bookie"])
        return ProgressBody(found.bookie_id, found.left, found.problem)

    async def _progress(self, call: Call) -> ProgressBody:
        found = await self._storage(call).progress(call.path["bookie"])
        return ProgressBody(found.bookie_id, found.left, found.problem)

    async def _recommission(self, call: Call) -> None:
        await self._storage(call).recommission(call.path["bookie"])

    def _storage(self, call: Call) -> StorageAdmin:
        self._context.authoriser.check_superuser(call.role)
        if self._context.storage is None:
            raise RefusedError(501, "this broker does not look after storage")
        return self._context.storage


def _load(load: BrokerLoad) -> LoadBody:
    return LoadBody(load.cpu, load.memory, load.messages_in, load.bytes_in, load.messages_out, load.bytes_out)


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


_NAMES = ("pulsar", "pulsar_tls", "kafka", "kafka_tls", "amqp", "amqps", "http", "https")


class BrokerAddresses(Struct, rename="camel"):
    """Empty where it does not listen."""

    pulsar: str
    pulsar_tls: str
    kafka: str
    kafka_tls: str
    amqp: str
    amqps: str
    http: str
    https: str


class AddressesAnswer(BrokerAddresses, rename="camel"):
    #: The data folder, on the machine of this broker; for superusers.
    data: str
    #: The cluster's other brokers.
    others: list[BrokerAddresses]


class Addresses:
    def __init__(self, context: AdminContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/admin/weir/v1/addresses",
                "Every listener of every broker; for superusers, the data folder too.",
                self._get,
                answer=AddressesAnswer,
                tag="brokers",
            )
        ]

    async def _get(self, call: Call) -> AddressesAnswer:
        urls = self._context.urls
        data = urls.data if self._context.authoriser.may_see_machine(call.role) else ""
        others = [
            BrokerAddresses(**{name: info.listeners.get(name, "") for name in _NAMES})
            for info in self._context.broker.brokers()
            if info.broker_id != self._context.broker_id
        ]
        return AddressesAnswer(**{name: urls.url(name) for name in _NAMES}, data=data, others=others)
