"""Subscriptions of a topic: how far they are, who consumes, and moving them.

A topic: rates and lags live, partitions, storage, producers; and what is done to it as a whole.

A topic's schema with its versions, and the policies that hold for it.
"""

from typing import Any

from weir.console import rendering
from weir.console.app import Console, PageRoute
from weir.console.history import Live
from weir.console.pages.messages import chosen_part, moment_ms
from weir.console.pages.topics import BASE, TopicFrame, frame_of, render, topic_segment, topic_url
from weir.console.sampler import SPAN_S
from weir.console.view import View
from weir.model.registry import Action
from weir.rest.http import Response
from weir.rest.routes import RefusedError

_KINDS = ("a", "b", "c", "d", "e")
#: Subscriptions with a line of their own, those with most waiting.
_LINES = 5


def topic_routes(console: Console) -> list[PageRoute]:
    live = Live()

    async def stream(view: View) -> Response:
        frame = await frame_of(view)
        return live.stream(view, "topic", str(frame.name), piece)

    return [
        PageRoute("GET", BASE, show_topic),
        PageRoute("GET", BASE.replace("/console/", "/console/live/"), stream),
        PageRoute("POST", f"{BASE}/delete", delete_topic),
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


async def show_topic(view: View) -> Response:
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

    def line(label: str, field: str, kind: str) -> rendering.Line:
        return rendering.Line(label, [(-point["ageS"], point[field]) for point in points], kind)

    return {
        "rate_plot": rendering.plot(
            "Messages per second",
            [line("in", "messagesIn", "a"), line("out", "messagesOut", "b")],
            lambda value: f"{rendering.rate(value)}/s",
            now_s=0.0,
            span_s=SPAN_S,
        ),
        "lag_plot": lag_plot(lags),
    }


def lag_plot(lags: dict[str, list[list[float]]], title: str = "Lag by subscription") -> Any:
    """A line for each of those that are furthest behind."""
    most = sorted(lags, key=lambda name: -(lags[name][-1][1] if lags[name] else 0))[:_LINES]
    lines = [
        rendering.Line(name, [(-age, lag) for age, lag in lags[name]], kind)
        for name, kind in zip(sorted(most), _KINDS, strict=False)
    ]
    return rendering.plot(title, lines, rendering.count, now_s=0.0, span_s=SPAN_S)


async def delete_topic(view: View) -> Response:
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


def schema_routes(console: Console) -> list[PageRoute]:
    return [PageRoute("GET", f"{BASE}/schema", show_schema), PageRoute("GET", f"{BASE}/policies", policies)]


async def show_schema(view: View) -> Response:
    frame = await frame_of(view)
    base = f"/admin/v2/schemas/{frame.name.namespace}/{topic_segment(frame.name.base)}/schemas"
    found = await view.look(base, default={})
    versions: list[dict[str, Any]] = list(reversed(found.get("getSchemaResponses", [])))
    for version in versions:
        version["shown"] = _definition(version)
    return render(view, frame, "schema", "schema.html", versions=versions)


async def policies(view: View) -> Response:
    frame = await frame_of(view)
    held = await view.context.registry.look_policies(frame.name)
    own = (await view.context.registry.topics.get(frame.name)).policies
    rows = [
        (name.replace("_", " "), _words(getattr(held, name)), getattr(own, name, None) is not None)
        for name in held.__dataclass_fields__
    ]
    properties = await view.look(frame.api("/properties"), default={})
    return render(view, frame, "policies", "policies.html", rows=rows, properties=properties)


def _definition(version: dict[str, Any]) -> str:
    import json

    try:
        return json.dumps(json.loads(version["data"]), indent=2, ensure_ascii=False)
    except ValueError:
        return str(version["data"])


def _words(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is not None:
        return ", ".join(f"{name.replace('_', ' ')} {_words(getattr(value, name))}" for name in fields)
    return str(getattr(value, "value", value))


#: Where a subscription can be moved.
_WORDS = {
    "end": "the end",
    "start": "the beginning",
    "moment": "the time {}",
    "offset": "offset {}",
    "skip": "{} messages further",
}


def subscription_routes(console: Console) -> list[PageRoute]:
    return [
        PageRoute("GET", f"{BASE}/subscriptions", show_subscriptions),
        PageRoute("POST", f"{BASE}/subscriptions/create", create),
        PageRoute("POST", f"{BASE}/subscriptions/delete", delete),
        PageRoute("POST", f"{BASE}/subscriptions/move", move),
    ]


async def show_subscriptions(view: View) -> Response:
    frame = await frame_of(view)
    stats = await stats_of(view, frame)
    return render(
        view,
        frame,
        "subscriptions",
        "subscriptions.html",
        subscriptions=stats["subscriptions"],
        by_part={
            name: [
                (part.partition, stats["partitions"].get(str(part), {}).get("subscriptions", {}).get(name))
                for part in frame.parts()
            ]
            for name in (stats["subscriptions"] if frame.whole else ())
        },
        now_ms=view.context.clock.wall_ms(),
        may=frame.stored and view.context.authoriser.may(view.role, Action.CONSUME, frame.name),
        live=frame.url().replace("/console/", "/console/live/", 1),
        **await history_plots(view, frame),
    )


async def create(view: View) -> Response:
    frame = await frame_of(view)
    name = view.said("subscription").strip()
    start = (-1, -1) if view.form.get("from") == "earliest" else (2**63 - 1, 2**63 - 1)
    await view.ask("PUT", frame.subscription(name), body={"ledgerId": start[0], "entryId": start[1]})
    return view.back(frame.url("subscriptions"), f"{name} is there.")


async def delete(view: View) -> Response:
    frame = await frame_of(view)
    name = view.said("subscription")
    await view.ask("DELETE", frame.subscription(name), {"force": view.form.get("force") == "yes"})
    return view.back(frame.url("subscriptions"), f"{name} is deleted.")


async def move(view: View) -> Response:
    """Somewhere else in the topic: what is before is acknowledged, what is behind comes (again)."""
    frame = await frame_of(view)
    name, to, value = view.said("subscription"), view.said("to"), view.form.get("value", "").strip()
    back = view.form.get("back", "")
    back = back if back.startswith("/console/") else frame.url("subscriptions")
    if view.form.get("confirmed") != "yes":
        return await _confirm(view, frame, name, to, value, back=back)
    said = await move_to(view, frame, name, to, value)
    return view.back(back, said)


async def _confirm(view: View, frame: TopicFrame, name: str, to: str, value: str, *, back: str) -> Response:
    """The question before a subscription is moved, with the numbers of messages that this skips and repeats."""
    partition = view.form.get("partition", "0")
    parts = [chosen_part(view, frame, partition)] if to == "offset" else frame.parts()
    skipped = again = 0
    for part in parts:
        one = TopicFrame(part, 0)
        found = (await stats_of(view, one))["subscriptions"].get(name)
        if found is None:
            if len(parts) == 1:
                raise RefusedError(404, f"there is no subscription {name[:80]}")
            continue
        query = {"time": moment_ms(value)} if to == "moment" else None
        offsets = await view.ask("GET", one.weir_api("offsets"), query)
        target = _target(to, value, found["position"] or 0, offsets)
        backlog = found["msgBacklog"]
        if to == "end":
            skipped += backlog
        elif target > (found["position"] or 0):
            skipped += min(target - (found["position"] or 0), backlog)
        else:
            again += max(0, offsets["end"] - target - backlog)
    return render(
        view,
        frame,
        "subscriptions",
        "move.html",
        name=name,
        target=_WORDS[to].format(value),
        skipped=skipped,
        again=again,
        to=to,
        value=value,
        partition=partition,
        back=back,
    )


def _target(to: str, value: str, position: int, offsets: dict[str, int]) -> int:
    """The offset that a subscription of one partition is moved to."""
    wanted = {"end": offsets["end"], "start": offsets["start"], "moment": offsets["offset"]}.get(to)
    if wanted is None:
        if to not in _WORDS:
            raise _no_target(to)
        wanted = _number(value) + (position if to == "skip" else 0)
    return max(offsets["start"], min(wanted, offsets["end"]))


async def move_to(view: View, frame: TopicFrame, name: str, to: str, value: str) -> str:
    """Does it; answers what was done, in words."""
    match to:
        case "end":
            await view.ask("POST", frame.subscription(name, "/skip_all"))
            return f"{name} is at the end."
        case "start":
            await view.ask("POST", frame.subscription(name, "/resetcursor"), body={"ledgerId": -1, "entryId": -1})
            return f"{name} is at the beginning."
        case "moment":
            await view.ask("POST", frame.subscription(name, f"/resetcursor/{moment_ms(value)}"))
            return f"{name} is at {value}."
        case "skip":
            number = _number(value)
            await view.ask("POST", frame.subscription(name, f"/skip/{number}"))
            return f"{name} has skipped {number}."
        case "offset":
            part = chosen_part(view, frame, view.form.get("partition", "0"))
            one = TopicFrame(part, 0)
            found = await _at(view, one, _number(value))
            await view.ask("POST", one.subscription(name, "/resetcursor"), body=found)
            return f"{name} is at offset {value}: what is there and behind comes again."
        case _:
            raise _no_target(to)


def _no_target(to: str) -> RefusedError:
    return RefusedError(400, "no place to move to was chosen" if not to else f"{to[:40]!r} is no place to move to")


async def _at(view: View, frame: TopicFrame, offset: int) -> dict[str, Any]:
    """The place of an offset as the API names it; of one behind all messages, the end."""
    page = await view.ask("GET", frame.weir_api("messages"), {"offset": offset, "limit": 1})
    if not page["messages"]:
        return {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}
    return {"ledgerId": page["messages"][0]["ledger"], "entryId": page["messages"][0]["entry"]}


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise RefusedError(400, f"{text[:40]!r} is not a number")
    return int(text)
