"""What this process uses of its machine, as families of the metrics page, under the names that everybody uses."""

from weir.admin.metrics import GatewayFamily
from weir.runtime.interfaces import Resources


def process_families(resources: Resources, started_s: float) -> list[GatewayFamily]:
    """`started_s`: when, in seconds since 1970."""
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
