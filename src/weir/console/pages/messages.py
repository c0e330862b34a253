"""Messages of a topic: by offset, by moment, by key, decoded by the schema; and one sent again."""

from base64 import b64decode
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from weir.admin.http import Response
from weir.admin.routing import RefusedError
from weir.console.app import Console, PageRoute
from weir.console.pages.topic_frame import BASE, TopicFrame, frame_of, render, schema_of
from weir.console.values import Shown, ValueSchema, plain, show
from weir.console.view import View
from weir.model.registry import Action
from weir.model.topics import TopicName

_PAGE = 50
#: The end of the year 9999, the last one that dates have.
_LAST_MS = 253_402_300_799_999
#: As `wire.pulsar.translation` writes it.
SCHEMA_VERSION = "weir-schema-version"


def routes(console: Console) -> list[PageRoute]:
    return [
        PageRoute("GET", f"{BASE}/messages", browse),
        PageRoute("POST", f"{BASE}/again", again),
        PageRoute("POST", f"{BASE}/redeliver", redeliver),
    ]


@dataclass(frozen=True, slots=True)
class ShownMessage:
    raw: dict[str, Any]
    key: str
    value: Shown
    headers: list[tuple[str, str]]

    @property
    def line(self) -> str:
        """The value on one line."""
        return " ".join(self.value.text[:400].split())[:200]


async def browse(view: View) -> Response:
    frame = await frame_of(view)
    part = chosen_part(view, frame)
    by, moment, query = _query(view)
    page = await view.ask("GET", frame.weir_api("messages", part), {**query, "limit": _PAGE})
    shown = await shown_messages(view, frame, page["messages"])
    return render(
        view,
        frame,
        "messages",
        "messages.html",
        part=part,
        by=by,
        asked={"offset": view.asked("offset"), "key": view.asked("key"), "moment": local_time(moment)},
        page_of=page,
        messages=shown,
        subscriptions=await view.look(frame.api("/subscriptions"), default=[]),
        may_produce=view.context.authoriser.may(view.role, Action.PRODUCE, frame.name),
    )


async def again(view: View) -> Response:
    """A copy of a stored message, at the end of its topic: consumers get it as a new one."""
    frame = await frame_of(view)
    part = chosen_part(view, frame, view.said("partition"))
    offset = view.said("offset")
    page = await view.ask("GET", frame.weir_api("messages", part), {"offset": offset, "limit": 1})
    found = page["messages"]
    if not found or str(found[0]["offset"]) != offset:
        raise RefusedError(404, f"there is no message at offset {offset[:20]} any more")
    if found[0]["cut"]:
        raise RefusedError(412, "the message is too large to be sent again from here", hint="use a client")
    sent = await view.ask("POST", frame.weir_api("messages", part), body=copy_of(found[0]))
    return view.back(frame.url("messages"), f"Sent again: it is at offset {sent['offset']} now.")


async def redeliver(view: View) -> Response:
    """The stored message itself, to one subscription, and no other with it."""
    frame = await frame_of(view)
    one = TopicFrame(chosen_part(view, frame, view.said("partition")), 0)
    name, offset = view.said("subscription"), view.said("offset")
    if not (offset.isascii() and offset.isdigit() and len(offset) < 19):
        raise RefusedError(400, f"{offset[:40]!r} is not an offset")
    done = await view.ask("POST", one.subscription(name, f"/redeliver/{offset}"))
    said = "is delivered again" if done["again"] else "had not been delivered yet: it comes anyway"
    return view.back(frame.url("messages"), f"{name}: the message at offset {offset} {said}.")


def copy_of(message: dict[str, Any]) -> dict[str, Any]:
    """A browsed message as the API takes one."""
    return {
        "key": message["key"],
        "value": message["value"],
        "headers": message["headers"],
        "eventMs": message["eventMs"],
    }


def chosen_part(view: View, frame: TopicFrame, text: str | None = None) -> TopicName:
    """The partition that is looked at; the topic itself if it has none."""
    parts = frame.parts()
    number = text if text is not None else view.asked("partition", "0")
    if len(parts) == 1 or not (number.isascii() and number.isdigit()) or int(number) >= len(parts):
        return parts[0]
    return parts[int(number)]


async def shown_messages(view: View, frame: TopicFrame, messages: list[dict[str, Any]]) -> list[ShownMessage]:
    schemas: dict[str, ValueSchema | None] = {}
    found = []
    for raw in messages:
        headers = [(name, _header(value)) for name, value in raw["headers"]]
        version = next((value for name, value in headers if name == SCHEMA_VERSION and value.isdigit()), "")
        if version not in schemas:
            schemas[version] = await schema_of(view, frame, version or None)
        key = None if raw["key"] is None else b64decode(raw["key"])
        value = None if raw["value"] is None else b64decode(raw["value"])
        schema = None if raw["cut"] else schemas[version]
        found.append(ShownMessage(raw, "" if key is None else plain(key).text, show(value, schema, key), headers))
    return found


def moment_ms(text: str) -> int:
    """Milliseconds since 1970, or a date and time, UTC unless it says otherwise."""
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 18:
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as bad:
        hint = "write 2030-01-31T12:00, or milliseconds since 1970"
        raise RefusedError(400, f"{text[:60]!r} is not a moment", hint=hint) from bad
    return max(0, round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))


def local_time(moment: int | None) -> str:
    """As the browser's control for a date and a time has it, in UTC; empty for None."""
    if moment is None:
        return ""
    return datetime.fromtimestamp(moment / 1000, UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")


def _query(view: View) -> tuple[str, int | None, dict[str, object]]:
    """The chosen look-up, its moment if it has one, and the query of the API. A look-up that lacks its value, as
    after its choice in the form, shows the newest messages."""
    by = view.asked("by", "last")
    if by == "moment" and view.asked("moment"):
        moment = min(moment_ms(view.asked("moment")), _LAST_MS)
        return by, moment, {"moment": moment}
    if by == "key" and view.asked("key"):
        return by, None, {"key": view.asked("key"), "offset": view.number("offset", 0)}
    if by == "offset":
        return by, None, {"offset": view.number("offset", 0)}
    return by if by in ("moment", "key") else "last", None, {"last": _PAGE}


def _header(value: str | None) -> str:
    return "null" if value is None else plain(b64decode(value)).text
