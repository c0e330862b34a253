"""What a worker counts, and says of its function every other second."""

import logging
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from weir.client import functions as rest
from weir.client.admin import Access
from weir.model.definitions import Function, FunctionStats
from weir.model.errors import WeirError

log = logging.getLogger(__name__)

_EVERY_S = 2.0
#: How often of one of which there is nothing new: of many functions most are idle.
_SAME_EVERY_S = 10.0
_WINDOW_S = 30.0
#: Of the latest messages.
_SAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Origin:
    """The worker that counts: machine and process, since when, how many call the function, and how often it was
    started again."""

    where: str
    started_ms: int
    instances: int
    restarts: int

    @classmethod
    def here(cls, instances: int, restarts: int) -> "Origin":
        where = f"{platform.node()}, process {os.getpid()}"
        return cls(where, time.time_ns() // 1_000_000, instances, restarts)


class Counts:
    """Written by the worker alone, and read by the thread that reports."""

    def __init__(self) -> None:
        self.received = self.sent = self.failed = self.retried = self.dead = self.lag = 0
        self.state_keys = self.state_bytes = 0
        self.error = ""
        self._latencies: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        self._marks: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], maxlen=16)

    def took(self, seconds: float) -> None:
        self._latencies.append((time.monotonic(), seconds))

    def stats(self, function: Function, state: str, origin: Origin) -> FunctionStats:
        now = time.monotonic()
        latencies = sorted(took for at, took in list(self._latencies) if now - at < _WINDOW_S)
        self._marks.append((now, self.received))
        before, count = self._marks[0]
        return FunctionStats(
            id=function.id,
            version=function.version,
            state=state,
            received=self.received,
            sent=self.sent,
            failed=self.failed,
            retried=self.retried,
            dead=self.dead,
            received_per_second=round((self.received - count) / max(0.1, now - before), 1),
            lag=max(0, self.lag),
            latency_p50_ms=_part(latencies, 0.5),
            latency_p99_ms=_part(latencies, 0.99),
            state_keys=self.state_keys,
            state_bytes=self.state_bytes,
            instances=origin.instances if state == "running" else 0,
            restarts=origin.restarts,
            error=self.error,
            where=origin.where,
            started_ms=origin.started_ms,
        )


def _part(sorted_s: list[float], share: float) -> float:
    if not sorted_s:
        return 0.0
    return round(1000 * sorted_s[min(len(sorted_s) - 1, int(share * len(sorted_s)))], 2)


class Reports:
    """A thread that tells the broker how it goes, until it is closed."""

    def __init__(self, access: Access, function: Function, stats: Callable[[], FunctionStats]) -> None:
        self._access = access
        self._function = function
        self._stats = stats
        self._stopped = threading.Event()
        self._now = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """One last word."""
        self._stopped.set()
        self._now.set()
        self._thread.join(10)

    def tell(self) -> None:
        """Now, and not in its turn."""
        self._now.set()

    def _run(self) -> None:
        ended = False
        told: FunctionStats | None = None
        told_at = 0.0
        while not ended:
            self._now.wait(_EVERY_S)
            self._now.clear()
            ended = self._stopped.is_set()
            stats = self._stats()
            if stats == told and time.monotonic() - told_at < _SAME_EVERY_S:
                continue
            try:
                rest.report(self._access, self._function.name, stats)
                told, told_at = stats, time.monotonic()
            except WeirError as failure:
                log.debug("stats are not taken: %s", failure)
