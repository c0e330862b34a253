"""Histories as calls of the API: what a broker's sampler knows, for consoles of others and for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_TOPIC, topic_of
from weir.admin.routing import Call, Route
from weir.console.sampler import SPAN_S, Point, Sampler
from weir.model.topics import Domain

_STEP_S = 2.0
_STEPS = int(SPAN_S / _STEP_S)
_TAG = "history"


class RatePoint(Struct, rename="camel"):
    """`age_s`: how long ago. Per second, and messages that wait."""

    age_s: float
    messages_in: float
    messages_out: float
    bytes_in: float
    bytes_out: float
    backlog: int


class RatesAnswer(Struct, rename="camel"):
    broker: str
    #: Topics in use there.
    loaded: int
    connections: dict[str, int]
    #: Messages that wait for their moment.
    held: int
    points: list[RatePoint]


class HistoryAnswer(Struct, rename="camel"):
    points: list[RatePoint]
    #: By subscription: (seconds ago, messages that wait).
    lags: dict[str, list[tuple[float, int]]] = field(default_factory=dict)


class History:
    def __init__(self, context: AdminContext, sampler: Sampler, connections: Any) -> None:
        self._context = context
        self._sampler = sampler
        self._connections = connections

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/admin/weir/v1/rates",
                "What passed through this broker of late.",
                self._rates,
                answer=RatesAnswer,
                tag=_TAG,
            ),
            *(
                Route(
                    "GET",
                    f"/admin/weir/v1/history/{domain.value}/{{tenant}}/{{namespace}}/{{topic}}",
                    "What passed through a topic of late, and how far behind its subscriptions were.",
                    self._of_domain(domain),
                    answer=HistoryAnswer,
                    refusals=ABOUT_TOPIC,
                    tag=_TAG,
                )
                for domain in Domain
            ),
        ]

    async def _rates(self, call: Call) -> RatesAnswer:
        now = self._context.clock.monotonic()
        points = [rate_point(point, now) for point in self._sampler.points]
        sampler = self._sampler
        return RatesAnswer(
            self._context.broker_id, sampler.loaded, dict(self._connections()), sampler.held, points
        )

    def _of_domain(self, domain: Domain) -> Any:
        async def get(call: Call) -> HistoryAnswer:
            name = topic_of(call.path, domain)
            self._context.authoriser.check_lookup(call.role, name)
            parts = await self._context.on_partitions(call, name)
            if parts is not None:
                return merged(list(parts.values()))
            topic = await self._context.load(name)
            now = self._context.clock.monotonic()
            found = self._sampler.kept(topic)
            return HistoryAnswer(
                [rate_point(point, now) for point in found.points],
                {
                    subscription: [(round(now - at, 1), lag) for at, lag in lags]
                    for subscription, lags in found.lags.items()
                },
            )

        return get


def rate_point(point: Point, now: float) -> RatePoint:
    return RatePoint(
        round(now - point.at_s, 1),
        point.messages_in,
        point.messages_out,
        point.bytes_in,
        point.bytes_out,
        point.backlog,
    )


def merged(parts: Sequence[HistoryAnswer]) -> HistoryAnswer:
    """Of several partitions together: the sum of what each was at each step."""
    lags: dict[str, list[list[tuple[float, int]]]] = {}
    for part in parts:
        for name, points in part.lags.items():
            lags.setdefault(name, []).append(points)
    return HistoryAnswer(
        sum_points([part.points for part in parts]),
        {name: [(age, int(lag)) for age, lag in _sum_lags(series)] for name, series in lags.items()},
    )


def sum_points(series: Sequence[Sequence[RatePoint]]) -> list[RatePoint]:
    fields = ("messages_in", "messages_out", "bytes_in", "bytes_out", "backlog")
    sums = {
        name: _summed([[(point.age_s, getattr(point, name)) for point in points] for points in series])
        for name in fields
    }
    return [
        RatePoint(
            age,
            sums["messages_in"][age],
            sums["messages_out"][age],
            sums["bytes_in"][age],
            sums["bytes_out"][age],
            int(sums["backlog"][age]),
        )
        for age in sums["backlog"]
    ]


def _sum_lags(series: Sequence[Sequence[tuple[float, int]]]) -> list[tuple[float, float]]:
    return list(_summed(series).items())


def _summed(series: Sequence[Sequence[tuple[float, float]]]) -> Mapping[float, float]:
    """By age, the oldest first: at each step, the sum of what each series said last."""
    oldest = max((age for points in series for age, _ in points), default=0.0)
    steps = min(_STEPS, int(oldest / _STEP_S) + 1) if any(series) else 0
    ages = [step * _STEP_S for step in range(steps - 1, -1, -1)]
    sums = dict.fromkeys(ages, 0.0)
    for points in series:
        at, last = 0, 0.0
        for age in ages:
            while at < len(points) and points[at][0] >= age:
                last = points[at][1]
                at += 1
            sums[age] += last
    return sums
