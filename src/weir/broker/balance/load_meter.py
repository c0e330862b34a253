"""Measures a broker's load on demand: rates of its topics by bundle, and its use of CPU and memory.

Nothing runs between requests: rates are those since the last request, so a standalone broker pays nothing.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from weir.broker.balance.balance_round import traffic_cost
from weir.broker.rates import Traffic
from weir.model.cluster import MAX_REPORTED_BUNDLES, BrokerLoad, BundleLoad, BundleName, topic_hash
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock, Resources

#: Minimum interval of measurements, in seconds; sooner requests get the last one, because rates would be noise.
_LEAST_S = 5.0
#: Time constant of rates and CPU, in seconds: a burst of seconds must not cause moves.
_WINDOW_S = 30.0
#: A lower rate is a remainder of the smoothing after the end of traffic.
_NOTHING = 1e-3
#: Cost of a topic without traffic, for split points.
_TOPIC_COST = 1e-3
_RATES = len(Traffic._fields)
_IDLE = (0.0,) * _RATES


class MeasuredTopic(Protocol):
    @property
    def name(self) -> TopicName: ...

    def traffic(self) -> Traffic:
        """Totals since the topic was loaded."""


class LoadMeter:
    """Measures one broker. `topics`: the topics that it serves. `held`: the bundles that it owns."""

    def __init__(
        self,
        broker_id: str,
        clock: Clock,
        resources: Resources,
        *,
        topics: Callable[[], Iterable[MeasuredTopic]],
        bundle_of: Callable[[TopicName], BundleName],
        held: Callable[[], Iterable[BundleName]] = lambda: (),
        draining: Callable[[], bool] = lambda: False,
        memory_bytes: int = 0,
    ) -> None:
        """`memory_bytes`: memory available to the broker; 0: that of its container or machine."""
        self._broker_id = broker_id
        self._clock = clock
        self._resources = resources
        self._topics = topics
        self._bundle_of = bundle_of
        self._held = held
        self._draining = draining
        self._memory_bytes = memory_bytes
        self._at = clock.monotonic()
        self._cpu_s = (resources.loop_cpu_s(), resources.cpu_s())
        self._cpu = 0.0
        self._seen: dict[TopicName, Traffic] = {}
        #: Rates by topic, for topics with traffic.
        self._rates: dict[TopicName, tuple[float, ...]] = {}
        self._measured = False

    def load(self) -> BrokerLoad:
        """Return the present load; measure if the last measurement is old."""
        elapsed = self._clock.monotonic() - self._at
        if elapsed >= _LEAST_S:
            self._measure(elapsed)
        return self._report()

    def split_point(self, bundle: BundleName) -> int | None:
        """The hash that best halves the bundle's measured load, or its number of topics without load; None (the
        middle) for a bundle with at most one topic."""
        found = sorted(
            (topic_hash(topic.name), _TOPIC_COST + traffic_cost(*self._rates.get(topic.name, _IDLE)))
            for topic in self._topics()
            if bundle.holds(topic.name)
        )
        total = sum(work for _, work in found)
        if total <= 0:
            return None
        best: tuple[float, int] | None = None
        before = 0.0
        for number, (value, work) in enumerate(found):
            uneven = abs(2 * before - total)
            # A split before the first topic would leave one half empty.
            if number and found[0][0] < value < bundle.high and (best is None or uneven < best[0]):
                best = (uneven, value)
            before += work
        return None if best is None else best[1]

    # --- measuring ----------------------------------------------------------------------------------------------

    def _measure(self, elapsed: float) -> None:
        weight = min(1.0, elapsed / _WINDOW_S) if self._measured else 1.0
        seen: dict[TopicName, Traffic] = {}
        rates: dict[TopicName, tuple[float, ...]] = {}
        for topic in self._topics():
            now = topic.traffic()
            if any(now):
                seen[topic.name] = now
                fresh = _passed(self._seen.get(topic.name), now, elapsed)
                old = self._rates.get(topic.name, _IDLE)
                smooth = tuple(was + weight * (is_ - was) for was, is_ in zip(old, fresh, strict=True))
                if any(rate > _NOTHING for rate in smooth):
                    rates[topic.name] = smooth
        self._seen, self._rates = seen, rates
        self._cpu += weight * (self._cpu_share(elapsed) - self._cpu)
        self._at = self._clock.monotonic()
        self._measured = True

    def _cpu_share(self, elapsed: float) -> float:
        """CPU usage of the event loop's core, or of all cores, whichever is higher."""
        loop_s, process_s = self._resources.loop_cpu_s(), self._resources.cpu_s()
        loop, process = loop_s - self._cpu_s[0], process_s - self._cpu_s[1]
        self._cpu_s = (loop_s, process_s)
        return max(0.0, loop / elapsed, process / elapsed / self._resources.cores())

    def _report(self) -> BrokerLoad:
        sums = {bundle: [0.0] * (_RATES + 1) for bundle in self._held()}
        for topic in self._topics():
            into = sums.setdefault(self._bundle_of(topic.name), [0.0] * (_RATES + 1))
            into[_RATES] += 1
            for at, rate in enumerate(self._rates.get(topic.name, ())):
                into[at] += rate
        rows = sorted(sums.items(), key=lambda item: (-traffic_cost(*item[1][:_RATES]), item[0]))
        bundles = tuple(BundleLoad(str(name), f[0], f[1], f[2], f[3], int(f[_RATES])) for name, f in rows)
        messages_in, bytes_in, messages_out, bytes_out = (sum(f[at] for _, f in rows) for at in range(_RATES))
        return BrokerLoad(
            self._broker_id,
            bundles[:MAX_REPORTED_BUNDLES],
            self._cpu,
            self._resources.memory_bytes() / (self._memory_bytes or self._resources.memory_limit_bytes()),
            messages_in,
            bytes_in,
            messages_out,
            bytes_out,
            bundle_count=len(bundles),
            draining=self._draining(),
        )


def _passed(before: Traffic | None, now: Traffic, elapsed: float) -> tuple[float, ...]:
    """Rates per second. A total that has fallen restarted at 0: the topic was reloaded, or a subscription was
    removed."""
    if before is None:
        return tuple(total / elapsed for total in now)
    return tuple(
        (total - was if total >= was else total) / elapsed for was, total in zip(before, now, strict=True)
    )
