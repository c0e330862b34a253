"""How much of requests is in memory, as families of the metrics page."""

from weir.admin.metrics import GatewayFamily
from weir.runtime.intake import Intake


def intake_families(intake: Intake) -> list[GatewayFamily]:
    return [
        GatewayFamily(
            "weir_requests_bytes", "gauge", "Requests that are being received or served.", [({}, intake.taken)]
        ),
        GatewayFamily(
            "weir_requests_waiting",
            "gauge",
            "Connections whose request waits until there is room for it.",
            [({}, intake.waiting)],
        ),
    ]
