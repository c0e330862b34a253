"""The first page: rates, backlog, connections, disk, and the busiest topics, live.

Nodes: brokers with their load and bundles, bookies with their ledgers; draining and resuming a broker.

Who is connected, by every protocol, on every broker; everybody sees their own.
"""

from typing import Any
from urllib.parse import quote

import msgspec

from weir.console import rendering
from weir.console.app import Console, PageRoute
from weir.console.history import Live, RatesAnswer, rate_point, sum_points
from weir.console.sampler import SPAN_S, Point
from weir.console.view import View
from weir.model.topics import TopicName
from weir.rest.http import Response
from weir.rest.routes import RefusedError

_TOPICS = 12
_RATES = "/admin/weir/v1/rates"


def overview_routes(console: Console) -> list[PageRoute]:
    live = Live()

    async def stream(view: View) -> Response:
        return live.stream(view, "overview", "overview", piece)

    return [PageRoute("GET", "/", show_overview), PageRoute("GET", "/console/live/overview", stream)]


async def show_overview(view: View) -> Response:
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

    def line(label: str, field: str, kind: str) -> rendering.Line:
        return rendering.Line(label, [(-point.age_s, getattr(point, field)) for point in points], kind)

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
    per_second = lambda value: f"{rendering.rate(value)}/s"  # noqa: E731
    return {
        "last": points[-1] if points else rate_point(Point(now), now),
        "topics": await context.registry.topics.count(),
        "loaded": sampler.loaded + sum(one.loaded for one in others),
        "held": sampler.held + sum(one.held for one in others),
        "connections": list(connections.items()),
        "disk": await console.parts.disk(),
        "brokers": context.broker.brokers(),
        "busiest": busiest,
        "messages_plot": rendering.plot(
            "Messages per second",
            [line("in", "messages_in", "a"), line("out", "messages_out", "b")],
            per_second,
            now_s=0.0,
            span_s=SPAN_S,
        ),
        "bytes_plot": rendering.plot(
            "Bytes per second",
            [line("in", "bytes_in", "a"), line("out", "bytes_out", "b")],
            rendering.byte_rate,
            now_s=0.0,
            span_s=SPAN_S,
        ),
        "backlog_plot": rendering.plot(
            "Backlog",
            [line("waiting", "backlog", "c")],
            rendering.count,
            now_s=0.0,
            span_s=SPAN_S,
        ),
    }


_API = "/admin/weir/v1/cluster"


def node_routes(console: Console) -> list[PageRoute]:
    return [
        PageRoute("GET", "/console/cluster", show_nodes),
        PageRoute("POST", "/console/cluster/{verb}", change),
    ]


async def show_nodes(view: View) -> Response:
    found = await view.ask("GET", _API)
    return view.render(
        "cluster.html",
        title="Nodes",
        tab="cluster",
        cluster=found,
        me=view.context.broker_id,
        disk=await view.console.parts.disk(),
        data=view.context.urls.data if view.context.authoriser.may_see_machine(view.role) else "",
    )


async def change(view: View) -> Response:
    broker, verb = view.said("broker"), view.path["verb"]
    if verb not in ("drain", "resume"):
        raise RefusedError(404, f"brokers know no {verb[:40]}")
    await view.ask("PUT", f"{_API}/brokers/{quote(broker, safe='')}/{verb}")
    done = "gives everything to the others" if verb == "drain" else "takes bundles again"
    return view.back("/console/cluster", f"{broker} {done}.")


_CONNECTIONS_API = "/admin/weir/v1/connections"
_MOST = 1_000


def connection_routes(console: Console) -> list[PageRoute]:
    return [PageRoute("GET", "/console/connections", show_connections)]


async def show_connections(view: View) -> Response:
    found = list(await view.ask("GET", _CONNECTIONS_API))
    for other in await view.console.calls.ask_others(view.role, _CONNECTIONS_API):
        found += other
    wanted = view.asked("q").strip().lower()
    fields = ("protocol", "peer", "role", "client", "broker")
    rows = [one for one in found if any(wanted in str(one[field]).lower() for field in fields)]
    return view.render(
        "connections.html",
        title="Connections",
        tab="connections",
        rows=rows[:_MOST],
        total=len(rows),
        q=view.asked("q"),
        all=view.context.authoriser.may_monitor(view.role),
    )
