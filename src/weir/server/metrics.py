"""Metrics families of the node: damage, disk space, balance, broker calls, memory, process and event loop.

A broker that never led reports zeros for balance. Process metrics have Prometheus' usual names.
"""

from collections.abc import Sequence

from weir.admin.metrics import GatewayFamily
from weir.bookie.damage import Damages
from weir.broker.api.cluster import BundleInfo
from weir.broker.peers.peer_calls import CallCounts, PeerMetrics
from weir.runtime.budgets import ByteBudget, RequestBudget
from weir.runtime.interfaces import LoopHolds, Network, Resources
from weir.server.compose.cluster_balance import ClusterBalance
from weir.server.local_storage import Space


def balance_families(balance: ClusterBalance | None) -> list[GatewayFamily]:
    """Empty for a standalone broker."""
    if balance is None:
        return []
    metrics = balance.metrics
    return [
        GatewayFamily(
            "weir_balance_leader",
            "gauge",
            "1 if this broker moves and splits bundles for all.",
            [({}, float(balance.leading))],
        ),
        GatewayFamily("weir_balance_rounds_total", "counter", "Rounds that it led.", [({}, metrics.rounds)]),
        GatewayFamily(
            "weir_balance_actions_total",
            "counter",
            "Bundles that were moved, by the reason, or split, while it led.",
            [({"what": what}, count) for what, count in sorted(metrics.done.items())],
        ),
        GatewayFamily(
            "weir_balance_failures_total",
            "counter",
            "Moves and splits that did not come about.",
            [({"what": what}, count) for what, count in sorted(metrics.failed.items())],
        ),
        GatewayFamily(
            "weir_balance_usage",
            "gauge",
            "Usage of brokers in the last round: 1 is all that one can do.",
            [({"of": "busiest"}, metrics.busiest), ({"of": "mean"}, metrics.mean)],
        ),
        GatewayFamily(
            "weir_balance_uneven_brokers",
            "gauge",
            "Brokers that were being relieved or filled in the last round.",
            [({}, metrics.uneven)],
        ),
        GatewayFamily(
            "weir_balance_silent_brokers",
            "gauge",
            "Brokers that did not say how much work they have in the last round.",
            [({}, metrics.silent)],
        ),
    ]


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


def peer_families(metrics: PeerMetrics) -> list[GatewayFamily]:
    return [
        *_calls("asked", "to other brokers", metrics.asked),
        *_calls("served", "for other brokers", metrics.served),
        GatewayFamily(
            "weir_peer_strangers_total",
            "counter",
            "Connections to the listener for brokers that did not prove to belong to the cluster.",
            [({}, metrics.strangers)],
        ),
    ]


def _calls(word: str, whose: str, counts: CallCounts) -> list[GatewayFamily]:
    return [
        GatewayFamily(
            f"weir_peer_calls_{word}_total",
            "counter",
            f"Calls {whose}, by how they ended; error is empty for those that were answered.",
            [({"call": call, "error": error}, count) for (call, error), count in sorted(counts.outcomes.items())],
        ),
        GatewayFamily(
            f"weir_peer_calls_{word}_seconds_total",
            "counter",
            f"Time that calls {whose} took.",
            [({"call": call}, seconds) for call, seconds in sorted(counts.seconds.items())],
        ),
        GatewayFamily(
            f"weir_peer_calls_{word}_under_way",
            "gauge",
            f"Calls {whose} that are not answered yet.",
            [({}, counts.under_way)],
        ),
    ]


def process_families(resources: Resources, started_s: float) -> list[GatewayFamily]:
    """`started_s`: the start time in seconds since 1970."""
    open_files, most_files = resources.open_files()
    return [
        GatewayFamily(name, kind, text, [({}, value)])
        for name, kind, text, value in (
            ("process_cpu_seconds_total", "counter", "CPU time of the process.", resources.cpu_s()),
            ("process_resident_memory_bytes", "gauge", "What it has in memory.", resources.memory_bytes()),
            ("process_open_fds", "gauge", "Files and connections that are open.", open_files),
            ("process_max_fds", "gauge", "How many files and connections may be open.", most_files),
            ("process_start_time_seconds", "gauge", "When it started, in seconds since 1970.", started_s),
        )
    ]


def damage_families(damages: Damages, skipped_entries: int) -> list[GatewayFamily]:
    return [
        GatewayFamily(name, kind, text, [({}, value)])
        for name, kind, text, value in (
            ("weir_damaged_entries", "gauge", "Entries known to be damaged on the disk.", damages.count),
            (
                "weir_healed_entries_total",
                "counter",
                "Damaged entries that were written again from another copy.",
                damages.healed_entries,
            ),
            (
                "weir_mended_indexes_total",
                "counter",
                "Damaged indexes of entry logs that were made anew.",
                damages.mended_indexes,
            ),
            (
                "weir_skipped_entries",
                "gauge",
                "Entries that are damaged in every copy and left out by readers.",
                skipped_entries,
            ),
        )
    ]


def space_families(space: Space | None, *, writable: bool) -> list[GatewayFamily]:
    """Whether writes are accepted, and the disk usage if this process has a disk."""
    rows: list[tuple[str, str, int]] = [
        ("weir_storage_read_only", "1 while nothing new can be stored, because disks are full.", int(not writable))
    ]
    if space is not None:
        rows += [
            ("weir_disk_free_bytes", "Space left on the disk of the data folder.", space.free_bytes),
            (
                "weir_disk_low_water_bytes",
                "Below this much space nothing new is taken (storage.low_water_bytes).",
                space.low_water_bytes,
            ),
        ]
    return [GatewayFamily(name, "gauge", text, [({}, value)]) for name, text, value in rows]
