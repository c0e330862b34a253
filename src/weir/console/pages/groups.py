"""Kafka's consumer groups: who is in them, how far they are, and resetting those that rest.

Streams that SQL defines: their SQL, how far they are, and pausing, resuming and dropping them.

AMQP's queues and exchanges of the vhosts that the role may see.
"""

from typing import Any
from urllib.parse import quote

from weir.console.app import Console, PageRoute
from weir.console.pages.messages import moment_ms
from weir.console.pages.topic import lag_plot
from weir.console.pages.topics import TopicFrame, topic_url
from weir.console.view import View
from weir.model.queues import namespace_of_vhost
from weir.model.topics import TopicName
from weir.rest.http import Response
from weir.rest.routes import RefusedError

_API = "/admin/weir/v1/groups"
#: Partitions of a group whose lag is shown; of more, the first.
_PARTS = 200


def group_routes(console: Console) -> list[PageRoute]:
    return [
        PageRoute("GET", "/console/groups", show_groups),
        PageRoute("GET", "/console/groups/{group}", show_one),
        PageRoute("POST", "/console/groups/{group}/reset", reset),
    ]


async def show_groups(view: View) -> Response:
    found = list(await view.look(_API, default=[]))
    for other in await view.console.calls.ask_others(view.role, _API):
        found += other
    wanted = view.asked("q").strip().lower()
    groups = sorted((one for one in found if wanted in one["name"].lower()), key=lambda one: one["name"])
    return view.render("groups.html", title="Groups", tab="groups", groups=groups[:500], q=view.asked("q"))


async def show_one(view: View) -> Response:
    name = view.path["group"]
    group = await view.ask("GET", f"{_API}/{quote(name, safe='')}")
    rows, lags = [], {}
    for at in group["positions"][:_PARTS]:
        part = TopicName.parse(at["topic"])
        frame = TopicFrame(part, 0)
        history = await view.look(frame.weir_api("history"), default={"lags": {}})
        series = history["lags"].get(name, [])
        if series:
            lags[part.local_with_partition] = series
        rows.append(
            {**at, "name": part, "url": topic_url(part, "subscriptions"), "lag": series[-1][1] if series else None}
        )
    return view.render(
        "group.html",
        title=name,
        tab="groups",
        group=group,
        rows=rows,
        total=sum(row["lag"] or 0 for row in rows),
        lag_plot=lag_plot(lags, "Lag by partition"),
        url=f"/console/groups/{quote(name, safe='')}",
    )


async def reset(view: View) -> Response:
    """All of its partitions to the beginning, the end, a moment or an offset."""
    name, to, value = view.path["group"], view.said("to"), view.form.get("value", "").strip()
    if to not in ("start", "end", "moment", "offset"):
        raise RefusedError(400, "no place to reset to was chosen")
    group = await view.ask("GET", f"{_API}/{quote(name, safe='')}")
    places = {
        at["topic"]: await _place(view, TopicName.parse(at["topic"]), to, value) for at in group["positions"]
    }
    failed: dict[str, Any] = await view.ask(
        "POST", f"{_API}/{quote(name, safe='')}/positions", body={"positions": places}
    )
    where = f"/console/groups/{quote(name, safe='')}"
    if failed:
        return view.back(where, "; ".join(f"{topic}: {why}" for topic, why in failed.items()), badly=True)
    return view.back(where, f"{name} is reset on {len(places)} partitions.")


async def _place(view: View, part: TopicName, to: str, value: str) -> int:
    query: dict[str, object] = {"limit": 1}
    if to == "moment":
        query["moment"] = moment_ms(value)
    elif to == "offset":
        if not (value.isascii() and value.isdigit() and len(value) < 19):
            raise RefusedError(400, f"{value[:40]!r} is not an offset")
        query["offset"] = int(value)
    page = await view.ask("GET", TopicFrame(part, 0).weir_api("messages"), query)
    if to == "end" or not page["messages"]:
        return int(page["end"])
    return int(page["start"] if to == "start" else page["messages"][0]["offset"])


_MOST = 500


def queue_routes(console: Console) -> list[PageRoute]:
    return [PageRoute("GET", "/console/queues", show_queues)]


async def show_queues(view: View) -> Response:
    wanted = view.asked("q").strip().lower()
    queues = [one for one in await view.ask("GET", "/api/queues") if wanted in one["name"].lower()]
    exchanges = [one for one in await view.ask("GET", "/api/exchanges") if wanted in one["name"].lower()]
    for one in queues[:_MOST]:
        name = TopicName(namespace_of_vhost(one["vhost"]), one["name"])
        one["url"] = topic_url(name) if one.get("durable") and not one.get("exclusive") else ""
    return view.render(
        "queues.html",
        title="Queues",
        tab="queues",
        queues=queues[:_MOST],
        exchanges=[one for one in exchanges[:_MOST] if one["name"]],
        q=view.asked("q"),
    )


_STREAMS_API = "/admin/weir/v1/streams"


def stream_routes(console: Console) -> list[PageRoute]:
    return [
        PageRoute("GET", "/console/streams", show_streams),
        PageRoute("POST", "/console/streams/{verb}", change),
    ]


async def show_streams(view: View) -> Response:
    return view.render(
        "streams.html",
        title="Streams",
        tab="streams",
        streams=await view.look(_STREAMS_API, default=[]),
        runner=await view.look("/admin/weir/v1/stream-runner", default={}),
        now_ms=view.context.clock.wall_ms(),
    )


async def change(view: View) -> Response:
    name = TopicName.parse(view.said("stream"))
    path = f"{_STREAMS_API}/{name.namespace}/{quote(name.local, safe='')}"
    verb = view.path["verb"]
    if verb == "drop":
        await view.ask("DELETE", path)
        return view.back("/console/streams", f"{name.local} is dropped; its topic stays.")
    if verb not in ("pause", "resume"):
        raise RefusedError(404, f"streams know no {verb[:40]}")
    found = await view.ask("GET", path)
    body = {name: found[name] for name in ("sql", "sources", "options")}
    await view.ask("PUT", path, body={**body, "state": "paused" if verb == "pause" else "running"})
    return view.back("/console/streams", f"{name.local} shall {'rest' if verb == 'pause' else 'run'} now.")
