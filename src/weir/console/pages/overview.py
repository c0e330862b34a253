"""The first page: rates, backlog, connections, disk, and the busiest topics, live."""

from typing import Any

import msgspec

from weir.admin.http import Response
from weir.console import plots, texts
from weir.console.app import Console, PageRoute
from weir.console.history import RatesAnswer, rate_point, sum_points
from weir.console.live import Live
from weir.console.sampler import SPAN_S, Point
from weir.console.view import View
from weir.model.topics import TopicName

_TOPICS = 12
_RATES = "/admin/weir/v1/rates"


def routes(console: Console) -> list[PageRoute]:
    live = Live()

    async def stream(view: View) -> Response:
        return live.stream(view, "overview", "overview", piece)

    return [PageRoute("GET", "/", show), PageRoute("GET", "/console/live/overview", stream)]


async def show(view: View) -> Response:
    return view.render("overview.html", title="Overview", tab="overview", **await _values(view))


async def piece(view: View) -> str:
    return view.console.templates.render("_overview.html", view=view, **await _values(view))


async def _values(view: View) -> dict[str, Any]:
    console, context = view.console, view.context
    sampler, now = console.sampler, context.clock.monotonic()
    others = [msgspec.convert(one, RatesAnswer) for one in await console.calls.ask_others(view.role, _RATES)]
    points = [rate_point(point, now) for point in sampler.points]
    if others:
        points = sum_points([points, *(one.points for one in others)])
    connections = dict(console.parts.connections())
    for one in others:
        for protocol, number in one.connections.items():
            connections[protocol] = connections.get(protocol, 0) + number

    def may(name: TopicName) -> bool:
        return context.authoriser.may_look(view.role, name)

    def line(label: str, field: str, kind: str) -> plots.Line:
        return plots.Line(label, [(-point.age_s, getattr(point, field)) for point in points], kind)

    busiest = [
        {
            "name": name,
            "history": sampler.topics[name],
            "last": sampler.topics[name].points[-1],
            "rates": [point.messages_in for point in sampler.topics[name].points][-60:],
            "backlogs": [float(point.backlog) for point in sampler.topics[name].points][-60:],
        }
        for name in sampler.busiest(_TOPICS, may)
    ]
    per_second = lambda value: f"{texts.rate(value)}/s"  # noqa: E731
    return {
        "last": points[-1] if points else rate_point(Point(now), now),
        "topics": await context.registry.topics.count(),
        "loaded": sampler.loaded + sum(one.loaded for one in others),
        "held": sampler.held + sum(one.held for one in others),
        "connections": list(connections.items()),
        "disk": await console.parts.disk(),
        "brokers": context.broker.brokers(),
        "busiest": busiest,
        "messages_plot": plots.plot(
            "Messages per second",
            [line("in", "messages_in", "a"), line("out", "messages_out", "b")],
            per_second,
            now_s=0.0,
            span_s=SPAN_S,
        ),
        "bytes_plot": plots.plot(
            "Bytes per second",
            [line("in", "bytes_in", "a"), line("out", "bytes_out", "b")],
            texts.byte_rate,
            now_s=0.0,
            span_s=SPAN_S,
        ),
        "backlog_plot": plots.plot(
            "Backlog",
            [line("waiting", "backlog", "c")],
            texts.count,
            now_s=0.0,
            span_s=SPAN_S,
        ),
    }
