"""What this process uses of its machine, by the operating system's own count."""

import os
import resource
import time
from contextlib import suppress
from pathlib import Path

_STATM = Path("/proc/self/statm")
_FILES = Path("/proc/self/fd")
#: Where a container's memory limit is written, in its versions; a missing file or "max" is no limit.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class RealResources:
    """Fills `Resources`; ask from the thread whose loop is meant."""

    def loop_cpu_s(self) -> float:
        return time.thread_time()

    def cpu_s(self) -> float:
        return time.process_time()

    def cores(self) -> int:
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    def memory_bytes(self) -> int:
        try:
            return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):  # no Linux: nothing is known without another library
            return 0

    def open_files(self) -> tuple[int, int]:
        try:
            count = len(os.listdir(_FILES))
        except OSError:  # no Linux
            count = 0
        return count, resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def memory_limit_bytes(self) -> int:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        for path in _LIMITS:
            with suppress(OSError, ValueError):
                return min(machine, int(path.read_text(encoding="ascii")))
        return machine
