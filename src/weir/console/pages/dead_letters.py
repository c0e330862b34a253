"""Dead letters: topics with what consumers gave up on, and redriving them to where they came from."""

from base64 import b64decode
from typing import Any

from weir.admin.http import Response
from weir.admin.routing import RefusedError
from weir.console.app import Console, PageRoute
from weir.console.pages.messages import copy_of, shown_messages
from weir.console.pages.topic_frame import BASE, TopicFrame, frame_of, render
from weir.console.pages.topics import topic_url
from weir.console.view import View
from weir.model.topics import TopicName

#: As Pulsar's clients name such topics: `topic-subscription-DLQ`.
_SUFFIX = "-DLQ"
#: Where a redrive keeps how far it is, of a topic that is no queue of AMQP's.
_CURSOR = "weir-redrive"
_QUEUE = "queue"
#: What only says how a message came to be a dead letter; Pulsar's and RabbitMQ's words.
_BOOKKEEPING = (
    "REAL_TOPIC",
    "REAL_SUBSCRIPTION",
    "ORIGIN_MESSAGE_ID",
    "RECONSUMETIMES",
    "DELAY_TIME",
    "x-death",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
)
#: So many go with one click; asked again, it goes on.
_MOST = 1_000
_PAGE = 100


def routes(console: Console) -> list[PageRoute]:
    return [
        PageRoute("GET", f"{BASE}/deadletters", show),
        PageRoute("POST", f"{BASE}/deadletters/redrive", redrive),
    ]


async def show(view: View) -> Response:
    frame = await frame_of(view)
    first: list[dict[str, Any]] = []
    waiting = 0
    for part in frame.parts():
        one = TopicFrame(part, 0)
        at, left = await _position(view, one)
        waiting += left
        if left and not first:
            found = await view.ask("GET", one.weir_api("messages"), {"offset": at, "limit": 20})
            first = found["messages"]
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
    """Copies to the target what was not redriven yet, in order, and moves on: whatever stops it, nothing is lost,
    and at most what was under way comes twice."""
    frame = await frame_of(view)
    target = TopicName.parse(view.said("target").strip())
    if target.base == frame.name.base:
        raise RefusedError(412, "dead letters cannot be redriven into their own topic")
    into = TopicFrame(target, 0).weir_api("messages")
    await view.ask("GET", TopicFrame(target, 0).api("/partitions"))
    done = 0
    for part in frame.parts():
        done += await _redrive(view, TopicFrame(part, 0), into, _MOST - done)
    return view.back(frame.url("deadletters"), f"{done} messages were sent to {target.local}.")


async def _redrive(view: View, frame: TopicFrame, into: str, most: int) -> int:
    cursor = await _cursor(view, frame, make=True)
    done = 0
    while done < most:
        at, left = await _position(view, frame)
        if not left:
            break
        page = await view.ask("GET", frame.weir_api("messages"), {"offset": at, "limit": min(_PAGE, most - done)})
        if not page["messages"]:
            break
        for message in page["messages"]:
            if message["cut"]:
                raise RefusedError(412, f"the message at offset {message['offset']} is too large for the console")
            await view.ask("POST", into, body=copy_of(message, _BOOKKEEPING))
            await view.ask("POST", frame.subscription(cursor, "/skip/1"))
            done += 1
    return done


async def _cursor(view: View, frame: TopicFrame, *, make: bool = False) -> str:
    """The subscription that says how far a redrive is: a queue's own, or one that is made for it."""
    known = await view.ask("GET", frame.api("/subscriptions"))
    if _QUEUE in known:
        return _QUEUE
    if _CURSOR not in known and make:
        await view.ask("PUT", frame.subscription(_CURSOR), body={"ledgerId": -1, "entryId": -1})
    return _CURSOR


async def _position(view: View, frame: TopicFrame) -> tuple[int, int]:
    """The offset of the first dead letter that was not redriven, and how many there are."""
    stats = await view.ask("GET", frame.api("/stats"))
    subscription = stats["subscriptions"].get(await _cursor(view, frame))
    if subscription is not None and subscription["position"] is not None:
        return subscription["position"], subscription["msgBacklog"]
    page = await view.ask("GET", frame.weir_api("messages"), {"offset": 0, "limit": 1})
    return page["start"], page["end"] - page["start"]


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
