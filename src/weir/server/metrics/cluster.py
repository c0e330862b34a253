"""The cluster as this broker knows it, as families of the metrics page."""

from collections.abc import Sequence

from weir.admin.metrics import GatewayFamily
from weir.broker.api import BundleInfo


def cluster_families(
    brokers: int, bundles: Sequence[BundleInfo], broker_id: str, *, draining: bool
) -> list[GatewayFamily]:
    mine, nobodys = sum(info.owner == broker_id for info in bundles), sum(not info.owner for info in bundles)
    return [
        GatewayFamily(name, "gauge", about, [({}, value)])
        for name, about, value in (
            ("weir_cluster_brokers", "Brokers that are registered.", brokers),
            ("weir_cluster_bundles", "Bundles that this broker has.", mine),
            ("weir_cluster_unowned_bundles", "Bundles that nobody has now.", nobodys),
            ("weir_cluster_draining", "Whether this broker gives everything to the others.", int(draining)),
        )
    ]
