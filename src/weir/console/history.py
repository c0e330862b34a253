"""Histories as calls of the API: what a broker's sampler knows, for consoles of others and for programs.

Pushes to browsers: after each tick of the sampler, what changed, rendered once for all who may see the same.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from weir.admin.context import AdminContext
from weir.admin.names import ABOUT_TOPIC, topic_of
from weir.console.sampler import SPAN_S, Point, Sampler
from weir.console.view import SECURITY_HEADERS, View
from weir.model.errors import NotAuthenticatedError, WeirError
from weir.model.topics import Domain
from weir.rest.http import Response
from weir.rest.routes import Call, RefusedError, Route

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


log = logging.getLogger(__name__)

EVENTS = "text/event-stream"
#: Who look at the same time; more are told to come again.
MAX_VIEWERS = 200
#: Rendered pieces that are kept, each for as long as it is the newest.
_MAX_KEPT = 500

Render = Callable[[View], Awaitable[str]]


class Live:
    """Renders each piece once per tick and per role."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[int, str]] = {}
        #: How often something was rendered: what a test counts.
        self.rendered = 0

    def stream(self, view: View, event: str, key: str, render: Render) -> Response:
        """Events of one name, each with a piece of HTML. `key`: equal for those who look at the same."""
        if view.console.sampler.viewers >= MAX_VIEWERS:
            raise RefusedError(503, "too many look at this broker's console at once", hint="try another broker")
        headers = {**SECURITY_HEADERS, "cache-control": "no-store", "x-accel-buffering": "no"}
        return Response(200, b"", EVENTS, headers, self._events(view, event, key, render))

    async def _events(self, view: View, event: str, key: str, render: Render) -> AsyncGenerator[bytes, None]:
        sampler = view.console.sampler
        with sampler.viewed():
            seen = sampler.revision
            yield b"retry: 3000\n\n"
            while True:
                seen = await sampler.next(seen)
                if not await self._still(view):
                    return
                try:
                    piece = await self._piece(view, key, seen, render)
                except WeirError as gone:  # deleted, or not this role's to see any more
                    log.info("the console's viewer %s sees no more of %s: %s", view.role, key, gone)
                    return
                yield encode_event(event, piece)

    async def _piece(self, view: View, key: str, revision: int, render: Render) -> str:
        kept = self._kept.get((key, view.role))
        if kept is not None and kept[0] == revision:
            return kept[1]
        piece = await render(view)
        self.rendered += 1
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        self._kept[key, view.role] = (revision, piece)
        return piece

    async def _still(self, view: View) -> bool:
        """Whether session and credentials still hold, for the same role."""
        if view.signed_in and view.console.sessions.open(view.call.request) is None:
            return False
        try:
            return await view.console.role_of(view.session, view.call.request) == view.role
        except NotAuthenticatedError:
            return False


def encode_event(event: str, data: str) -> bytes:
    """As browsers read it: each line of the data on its own."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines())
    return f"event: {event}\n{lines}\n".encode()
