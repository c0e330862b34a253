"""For how long the event loop was held, as families of the metrics page."""

from weir.admin.metrics import GatewayFamily
from weir.runtime.interfaces import LoopHolds


def loop_families(holds: LoopHolds) -> list[GatewayFamily]:
    return [
        GatewayFamily(
            "weir_loop_held_seconds_max",
            "gauge",
            "The longest that one thing held the event loop since the start, in CPU time.",
            [({}, holds.longest_s)],
        ),
        GatewayFamily(
            "weir_loop_holds_total",
            "counter",
            "How often one thing held the event loop for more than a quarter of a second.",
            [({}, holds.count)],
        ),
    ]
