"""The cluster for those who look after it: brokers and their load, bundles, bookies; draining and emptying."""

from msgspec import Struct

from weir.admin.context import AdminContext
from weir.admin.routing import Call, RefusedError, Route
from weir.broker.api import StorageAdmin
from weir.model.features import common_features, held_back
from weir.model.load import BrokerLoad
from weir.wire.peer.administration import AdminCall

_CLUSTER = "/admin/weir/v1/cluster"
_BROKER = f"{_CLUSTER}/brokers/{{broker}}"
_BOOKIE = f"{_CLUSTER}/bookies/{{bookie}}"
_TAG = "cluster"
_ABOUT = {404: "no such broker", 412: "it cannot be done now", 501: "this broker does not look after storage"}


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
            return Route("PUT", f"{_BROKER}/{verb}", summary, action, refusals=_ABOUT, tag=_TAG)  # type: ignore[arg-type]

        return [
            Route("GET", _CLUSTER, "The cluster.", self._status, answer=ClusterBody, refusals=_ABOUT, tag=_TAG),
            broker("drain", "Have a broker give everything to the others.", self._drain),
            broker("resume", "Have a broker take bundles again.", self._resume),
            Route(
                "PUT",
                f"{_BOOKIE}/decommission",
                "Have a bookie hold nothing; asked again, it goes on.",
                self._decommission,
                answer=ProgressBody,
                refusals=_ABOUT,
                tag=_TAG,
            ),
            Route(
                "GET",
                f"{_BOOKIE}/decommission",
                "How much a bookie still holds.",
                self._progress,
                answer=ProgressBody,
                refusals=_ABOUT,
                tag=_TAG,
            ),
            Route(
                "DELETE",
                f"{_BOOKIE}/decommission",
                "Let a bookie take ledgers again.",
                self._recommission,
                refusals=_ABOUT,
                tag=_TAG,
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
