"""How much of requests is in memory, as families of the metrics page."""

from weir.admin.metrics import GatewayFamily
from weir.runtime.request_budget import RequestBudget


def budget_families(requests: RequestBudget) -> list[GatewayFamily]:
    return [
        GatewayFamily(
            "weir_requests_bytes",
            "gauge",
            "Requests that are being received or served.",
            [({}, requests.used_bytes)],
        ),
        GatewayFamily(
            "weir_requests_waiting",
            "gauge",
            "Connections whose request waits until there is capacity for it.",
            [({}, requests.waiting)],
        ),
    ]
