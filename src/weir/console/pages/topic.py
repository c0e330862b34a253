"""A topic: rates and lags live, partitions, storage, producers; and what is done to it as a whole."""

from typing import Any

from weir.admin.http import Response
from weir.admin.routing import RefusedError
from weir.console import plots, texts
from weir.console.app import Console, PageRoute
from weir.console.live import Live
from weir.console.pages.topic_frame import BASE, TopicFrame, frame_of, render
from weir.console.pages.topics import topic_url
from weir.console.sampler import SPAN_S
from weir.console.view import View

_KINDS = ("a", "b", "c", "d", "e")
#: Subscriptions with a line of their own, those with most waiting.
_LINES = 5


def routes(console: Console) -> list[PageRoute]:
    live = Live()

    async def stream(view: View) -> Response:
        frame = await frame_of(view)
        return live.stream(view, "topic", str(frame.name), piece)

    return [
        PageRoute("GET", BASE, show),
        PageRoute("GET", BASE.replace("/console/", "/console/live/"), stream),
        PageRoute("POST", f"{BASE}/delete", delete),
        PageRoute("POST", f"{BASE}/empty", empty),
        PageRoute("POST", f"{BASE}/grow", grow),
    ]


async def stats_of(view: View, frame: TopicFrame) -> dict[str, Any]:
    """Of the topic, or of all of its partitions together, with `partitions` by name then."""
    if frame.whole:
        found = await view.ask("GET", frame.api("/partitioned-stats"), {"getEarliestTimeInBacklog": True})
    else:
        found = await view.ask("GET", frame.api("/stats"), {"getEarliestTimeInBacklog": True})
    return dict(found)


async def show(view: View) -> Response:
    frame = await frame_of(view)
    stats = await stats_of(view, frame)
    inside: dict[str, Any] = {}
    if frame.stored and not frame.whole:
        inside = await view.look(frame.api("/internalStats"), default={})
    return render(
        view,
        frame,
        "",
        "topic.html",
        stats=stats,
        ledgers=inside.get("ledgers", []),
        parts=[
            {"url": topic_url(part), "number": part.partition, "stats": stats["partitions"].get(str(part), {})}
            for part in (frame.parts() if frame.whole else [])
        ],
        may_administer=view.context.authoriser.may_administer(view.role, frame.name),
        live=frame.url().replace("/console/", "/console/live/", 1),
        **await history_plots(view, frame),
    )


async def piece(view: View) -> str:
    frame = await frame_of(view)
    return view.console.templates.render("_topic_plots.html", **await history_plots(view, frame))


async def history_plots(view: View, frame: TopicFrame) -> dict[str, Any]:
    """What its broker's sampler knows, drawn."""
    found = await view.ask("GET", frame.weir_api("history"))
    points, lags = found["points"], found["lags"]

    def line(label: str, field: str, kind: str) -> plots.Line:
        return plots.Line(label, [(-point["ageS"], point[field]) for point in points], kind)

    return {
        "rate_plot": plots.plot(
            "Messages per second",
            [line("in", "messagesIn", "a"), line("out", "messagesOut", "b")],
            lambda value: f"{texts.rate(value)}/s",
            now_s=0.0,
            span_s=SPAN_S,
        ),
        "lag_plot": lag_plot(lags),
    }


def lag_plot(lags: dict[str, list[list[float]]], title: str = "Lag by subscription") -> Any:
    """A line for each of those that are furthest behind."""
    most = sorted(lags, key=lambda name: -(lags[name][-1][1] if lags[name] else 0))[:_LINES]
    lines = [
        plots.Line(name, [(-age, lag) for age, lag in lags[name]], kind)
        for name, kind in zip(sorted(most), _KINDS, strict=False)
    ]
    return plots.plot(title, lines, texts.count, now_s=0.0, span_s=SPAN_S)


async def delete(view: View) -> Response:
    frame = await frame_of(view)
    force = view.form.get("force") == "yes"
    await view.ask("DELETE", frame.api("/partitions") if frame.whole else frame.api(), {"force": force})
    return view.back(f"/console/topics?namespace={frame.name.namespace}", f"{frame.name.local} is deleted.")


async def empty(view: View) -> Response:
    frame = await frame_of(view)
    await view.ask("DELETE", frame.api("/truncate"))
    return view.back(frame.url(), "Every message is forgotten.")


async def grow(view: View) -> Response:
    frame = await frame_of(view)
    text = view.said("partitions").strip()
    if not (text.isascii() and text.isdigit()):
        raise RefusedError(400, f"{text[:40]} is not a number of partitions")
    await view.ask("POST", frame.api("/partitions"), body=int(text))
    return view.back(frame.url(), f"It has {text} partitions now.")
