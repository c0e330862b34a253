"""Dead letters: topics with what consumers gave up on, and redriving them to where they came from."""

from base64 import b64decode
from typing import Any

from weir.console.app import Console, PageRoute
from weir.console.pages.messages import shown_messages
from weir.console.pages.topics import BASE, TopicFrame, frame_of, render, topic_url
from weir.console.view import View
from weir.model.topics import TopicName
from weir.rest.http import Response

#: As Pulsar's clients name such topics: `topic-subscription-DLQ`.
_SUFFIX = "-DLQ"
#: How many letters one click moves at most.
_MOST = 100_000
_PAGE = 500


def routes(console: Console) -> list[PageRoute]:
    return [
        PageRoute("GET", f"{BASE}/deadletters", show),
        PageRoute("POST", f"{BASE}/deadletters/redrive", redrive),
    ]


async def show(view: View) -> Response:
    frame = await frame_of(view)
    first: list[dict[str, Any]] = []
    waiting = 0
    for part in frame.parts() if frame.stored else ():
        one = TopicFrame(part, 0)
        page = await view.ask("GET", one.weir_api("dead-letters"), {"limit": 1})
        waiting += page["waiting"]
        if page["letters"] and not first:
            at = page["letters"][0]["offset"]
            first = (await view.ask("GET", one.weir_api("messages"), {"offset": at, "limit": 20}))["messages"]
    return render(
        view,
        frame,
        "deadletters",
        "deadletters.html",
        waiting=waiting,
        target=_target(frame.name, first),
        messages=await shown_messages(view, frame, first),
        related=await _related(view, frame),
        most=_MOST,
    )


async def redrive(view: View) -> Response:
    """Move the letters that are here now to the target, each exactly once. One that dies again meanwhile is a new
    letter, behind the ends that this call has found, and stays."""
    frame = await frame_of(view)
    target = TopicName.parse(view.said("target").strip())
    await view.ask("GET", TopicFrame(target, 0).api("/partitions"))
    paths = [TopicFrame(part, 0).weir_api("dead-letters") for part in frame.parts()]
    ends = [(await view.ask("GET", path, {"limit": 1}))["end"] for path in paths]
    moved = kept = 0
    for path, end in zip(paths, ends, strict=True):
        start: int | None = 0
        while start is not None and moved < _MOST:
            query = {"from": start, "before": end, "limit": min(_PAGE, _MOST - moved), "to": str(target)}
            page = await view.ask("POST", f"{path}/redrive", query)
            moved, kept, start = moved + page["moved"], kept + page["kept"], page["next"]
    stayed = f" {kept} stay: a consumer has them." if kept else ""
    return view.back(frame.url("deadletters"), f"{moved} messages were sent to {target.local}.{stayed}")


def _target(name: TopicName, messages: list[dict[str, Any]]) -> str:
    """Where they came from, as they say themselves, or as their topic's name says; "" if nobody does."""
    for message in messages:
        for header, value in message["headers"]:
            if value is not None and header == "REAL_TOPIC":
                text = b64decode(value).decode("utf-8", "replace")
                return str(TopicName.parse(text).base) if "/" in text else text
            if value is not None and header == "x-first-death-queue":
                queue = b64decode(value).decode("utf-8", "replace")
                return f"persistent://{name.namespace}/{queue}"
    if name.local.endswith(_SUFFIX):
        return f"persistent://{name.namespace}/{name.local.removesuffix(_SUFFIX).rpartition('-')[0]}"
    return ""


async def _related(view: View, frame: TopicFrame) -> list[dict[str, Any]]:
    """The topics with dead letters of this one, by their names."""
    found: list[dict[str, Any]] = []
    start = TopicName(frame.name.namespace, frame.name.local)
    async for record in view.context.registry.topics.of(frame.name.namespace, frame.name.domain, after=start):
        local = record.name.local
        if not local.startswith(frame.name.local) or len(found) == 50:
            break
        if local.endswith(_SUFFIX) and local.startswith(f"{frame.name.local}-"):
            found.append({"name": record.name, "url": topic_url(record.name, "deadletters")})
    return found
