"""How much is in memory for clients, and what waits for it, as families of the metrics page."""

from weir.admin.metrics import GatewayFamily
from weir.runtime.byte_budget import ByteBudget
from weir.runtime.interfaces import Network
from weir.runtime.request_budget import RequestBudget


def budget_families(
    requests: RequestBudget, unread: ByteBudget, queues: ByteBudget, net: Network
) -> list[GatewayFamily]:
    return [
        _gauge("weir_requests_bytes", "Requests that are being received or served.", requests.used_bytes),
        _gauge(
            "weir_requests_waiting",
            "Connections whose request waits until there is capacity for it.",
            requests.waiting,
        ),
        _gauge(
            "weir_unread_bytes", "Bytes read for Kafka's clients that have not been sent yet.", unread.used_bytes
        ),
        _gauge("weir_unread_waiting", "Fetches that wait until others have read theirs.", unread.waiting),
        _gauge("weir_queue_memory_bytes", "Messages of AMQP's queues in memory.", queues.used_bytes),
        GatewayFamily(
            "weir_descriptor_waits_total",
            "counter",
            "Times that a connection had to wait for a file descriptor.",
            [({}, net.descriptor_waits)],
        ),
    ]


def _gauge(name: str, about: str, value: int) -> GatewayFamily:
    return GatewayFamily(name, "gauge", about, [({}, value)])
