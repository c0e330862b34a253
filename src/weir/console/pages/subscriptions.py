"""Subscriptions of a topic: how far they are, who consumes, and moving them."""

from typing import Any

from weir.admin.http import Response
from weir.admin.routing import RefusedError
from weir.console.app import Console, PageRoute
from weir.console.pages.messages import chosen_part, moment_ms
from weir.console.pages.topic import history_plots, stats_of
from weir.console.pages.topic_frame import BASE, TopicFrame, frame_of, render
from weir.console.view import View
from weir.model.registry import Action

#: Where a subscription can be moved.
_WORDS = {
    "end": "the end",
    "start": "the beginning",
    "moment": "the time {}",
    "offset": "offset {}",
    "skip": "{} messages further",
}


def routes(console: Console) -> list[PageRoute]:
    return [
        PageRoute("GET", f"{BASE}/subscriptions", show),
        PageRoute("POST", f"{BASE}/subscriptions/create", create),
        PageRoute("POST", f"{BASE}/subscriptions/delete", delete),
        PageRoute("POST", f"{BASE}/subscriptions/move", move),
    ]


async def show(view: View) -> Response:
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
