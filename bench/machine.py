"""What the numbers were measured on, and how quiet it was meanwhile."""

import ctypes
import os
import platform
import resource
import subprocess
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

#: More foreign work than this makes the numbers doubtful.
QUIET_CORES = 0.3

_TICKS_S = os.sysconf("SC_CLK_TCK")
_LOOK_S = 0.5
_PR_SET_CHILD_SUBREAPER = 36


def facts(folder: str) -> dict[str, str | float]:
    """Cores, memory, kernel, disk and versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    return {
        "cores": os.cpu_count() or 0,
        "processor": _processor(),
        "memory_gb": round(memory / 1e9),
        "kernel": platform.release(),
        "disk": _disk(folder),
        "python": platform.python_version(),
        "uvloop": version("uvloop"),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        **({"nice": niceness} if niceness else {}),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _disk(folder: str) -> str:
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        parts = line.split()
        if parts[2] == wanted:
            dash = parts.index("-")
            return f"{parts[dash + 2]}, {parts[dash + 1]}"
    return "unknown"


def _commit() -> str:
    run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown"


def _busy_s() -> float:
    """CPU seconds that anyone spent on this machine, including time stolen by its host."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS_S


def _own_s() -> float:
    spent = 0.0
    for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(whose)
        spent += usage.ru_utime + usage.ru_stime
    return spent


def adopt_orphans() -> None:
    """Processes whose parent was killed (Spark's Python workers) become this one's, so that their work counts as
    the benchmark's and not as others'; where the system cannot do so, it counts as others'."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def bury_orphans() -> None:
    """Only those that were waited for are counted."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


@dataclass
class Quietness:
    """How many cores others used while the benchmark ran (the kernel's own write-back included)."""

    _busy: float = field(default_factory=_busy_s)
    _own: float = field(default_factory=_own_s)
    _started: float = field(default_factory=time.monotonic)

    def foreign_cores(self) -> float:
        elapsed = max(time.monotonic() - self._started, 0.001)
        return max(0.0, (_busy_s() - self._busy) - (_own_s() - self._own)) / elapsed


def wait_for_quiet(patience_s: float) -> float:
    """Wait until others leave the machine alone for a moment, but no longer than this; how long it took."""
    started = time.monotonic()
    while time.monotonic() - started < patience_s:
        quiet = Quietness()
        time.sleep(_LOOK_S)
        if quiet.foreign_cores() < QUIET_CORES:
            break
    return time.monotonic() - started
