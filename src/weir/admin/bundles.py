"""Bundles of a namespace: which there are, and giving them away, splitting them, and clearing all in one."""

from collections.abc import Sequence

from weir.admin.bodies import BundlesData
from weir.admin.brokers import broker_named
from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_NAMESPACE, CONFLICT, NAMESPACE, namespace_of
from weir.admin.routing import Call, Query, RefusedError, Route
from weir.broker.api import BundleName
from weir.model.errors import NotOwnerError
from weir.model.topics import NamespaceName

_TAG = "bundles"
_BUNDLE = f"{NAMESPACE}/{{bundle}}"
_ABOUT = {307: "another broker has the bundle", **ABOUT_NAMESPACE}
_TO = Query("destinationBroker", str, "who is to have it: a broker's id, or its HTTP address as host:port")


class Bundles:
    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._unload_route = Route(
            "PUT",
            f"{_BUNDLE}/unload",
            "Let go of a bundle's topics, or give them to another broker.",
            self._unload,
            query=(_TO,),
            refusals=_ABOUT,
            tag=_TAG,
        )

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                f"{NAMESPACE}/bundles",
                "Its bundles.",
                self._list,
                answer=BundlesData,
                refusals=ABOUT_NAMESPACE,
                tag=_TAG,
            ),
            self._unload_route,
            Route(
                "PUT",
                f"{_BUNDLE}/transfer",
                "Give a bundle to another broker.",
                self._transfer,
                query=(_TO,),
                refusals=_ABOUT,
                tag=_TAG,
            ),
            Route(
                "PUT",
                f"{_BUNDLE}/split",
                "Make two bundles of one.",
                self._split,
                query=(
                    Query("unload", bool, "let go of both then", False),
                    Query("splitBoundaries", str, "at which hash, in hexadecimal; else in the middle"),
                ),
                refusals={**_ABOUT, **CONFLICT},
                tag=_TAG,
            ),
            Route(
                "PUT",
                f"{NAMESPACE}/unload",
                "Let go of all topics, on all brokers.",
                self._unload_all,
                query=(_TO,),
                refusals=ABOUT_NAMESPACE,
                tag=_TAG,
            ),
        ]

    async def _list(self, call: Call) -> BundlesData:
        return bundles_data([info.name for info in self._context.broker.bundles.of(self._namespace(call))])

    async def _unload(self, call: Call) -> None:
        bundle, to = self._named(call), call.query["destinationBroker"]
        try:
            await (self._give(bundle, to) if to else self._context.broker.bundles.let_go(bundle))
        except NotOwnerError:
            if self._context.broker.bundles.info(bundle).owner:
                raise

    async def _transfer(self, call: Call) -> None:
        bundle, to = self._named(call), call.query["destinationBroker"]
        if not to:
            raise RefusedError(412, "who is to have the bundle?", hint="give a broker as ?destinationBroker=")
        await self._give(bundle, to)

    async def _give(self, bundle: BundleName, to: str) -> None:
        await self._context.broker.bundles.hand_over(bundle, broker_named(self._context, to).broker_id)

    async def _split(self, call: Call) -> None:
        bundle = self._named(call)
        made = await self._context.broker.bundles.split(bundle, _hash(call.query["splitBoundaries"]))
        if call.query["unload"]:
            for half in made:
                await self._context.broker.bundles.let_go(half)

    async def _unload_all(self, call: Call) -> None:
        namespace = self._namespace(call)
        taken = [info.name for info in self._context.broker.bundles.of(namespace) if info.owner]
        await self._context.on_bundles(call, taken, route=self._unload_route)

    def _namespace(self, call: Call) -> NamespaceName:
        name = namespace_of(call.path)
        self._context.authoriser.check_admin(call.role, name)
        self._context.registry.namespaces.get(name)
        return name

    def _named(self, call: Call) -> BundleName:
        """What is done to a bundle that another broker has raises NotOwnerError, and its client is sent there."""
        return BundleName.of_range(self._namespace(call), call.path["bundle"])


def bundles_data(bundles: Sequence[BundleName]) -> BundlesData:
    """Their boundaries, as Pulsar writes them."""
    points = [*(bundle.low for bundle in bundles), *(bundle.high for bundle in bundles[-1:])]
    return BundlesData([f"0x{point:08x}" for point in points], len(bundles))


def _hash(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text, 0) if text.lower().startswith("0x") else int(text)
    except ValueError:
        raise RefusedError(412, f"{text[:80]!r} is no hash", hint="write it as 0x40000000") from None
