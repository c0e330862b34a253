"""Messages of a topic: by offset, by moment, by key, decoded by the schema; and one sent again.

Sending one message, now or later.

What waits for its moment: listed, cancelled, let go now.

What became of messages of a topic, by key, id or offset.
"""

from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from weir.console.app import Console, PageRoute
from weir.console.message_values import Shown, ValueSchema, encode, plain
from weir.console.message_values import show as show_value
from weir.console.pages.topics import BASE, TopicFrame, frame_of, render, schema_of, topic_segment
from weir.console.view import View
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.rest.http import Response
from weir.rest.routes import RefusedError

_PAGE = 50
#: The end of the year 9999, the last one that dates have.
_LAST_MS = 253_402_300_799_999
#: As `wire.pulsar.translation` writes it.
SCHEMA_VERSION = "weir-schema-version"


def browse_routes(console: Console) -> list[PageRoute]:
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
        found.append(
            ShownMessage(raw, "" if key is None else plain(key).text, show_value(value, schema, key), headers)
        )
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


def produce_routes(console: Console) -> list[PageRoute]:
    return [PageRoute("GET", f"{BASE}/produce", show_produce), PageRoute("POST", f"{BASE}/produce", send)]


async def show_produce(view: View) -> Response:
    return await _page(view, await frame_of(view))


async def _page(view: View, frame: TopicFrame, status: int = 200, problem: str = "") -> Response:
    """The form, with the content that was sent and the reason why it was refused."""
    return render(
        view,
        frame,
        "produce",
        "produce.html",
        status,
        problem=problem,
        filled={name: view.form.get(name, "") for name in ("value", "key", "at", "as", "headers")},
        schema=await schema_of(view, frame),
        may=view.context.authoriser.may(view.role, Action.PRODUCE, frame.name),
    )


async def send(view: View) -> Response:
    frame = await frame_of(view)
    try:
        return await _send(view, frame)
    except RefusedError as refused:
        if refused.status == HTTPStatus.FORBIDDEN:
            raise
        return await _page(view, frame, refused.status, str(refused))


async def _send(view: View, frame: TopicFrame) -> Response:
    schema = await schema_of(view, frame)
    try:
        value = bytes.fromhex(view.said("value")) if view.form.get("as") == "hex" else None
        value = encode(view.said("value").replace("\r\n", "\n"), schema) if value is None else value
    except Exception as bad:  # whatever codecs raise on what does not fit
        raise RefusedError(400, f"the value does not fit the schema: {str(bad)[:300]}") from bad
    key, at = view.form.get("key", ""), view.form.get("at", "").strip()
    headers = [_pair(line) for line in view.form.get("headers", "").splitlines() if line.strip()]
    if schema is not None and schema.type not in ("STRING", "BYTES", "NONE"):
        latest = await _version(view, frame.name)
        headers.append((SCHEMA_VERSION, b64encode(str(latest).encode()).decode()))
    body: dict[str, Any] = {
        "value": b64encode(value).decode(),
        "key": b64encode(key.encode()).decode() if key else None,
        "headers": headers,
        "deliverAtMs": moment_ms(at) if at else None,
    }
    sent = await view.ask(
        "POST", frame.weir_api("messages"), body={k: v for k, v in body.items() if v is not None}
    )
    if sent["held"]:
        return view.back(frame.url("held"), "Sent: it waits for its moment.")
    return view.back(
        frame.url("messages"), f"Sent: offset {sent['offset']} of {sent['topic'].rpartition('/')[2]}."
    )


async def _version(view: View, name: Any) -> int:
    found = await view.ask("GET", f"/admin/v2/schemas/{name.namespace}/{topic_segment(name.base)}/schema")
    return int(found["version"])


def _pair(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise RefusedError(400, f"{line[:60]!r} is not a header", hint="write name: value, one on each line")
    return name.strip(), b64encode(value.strip().encode()).decode()


_HELD_PAGE = 100


def delayed_routes(console: Console) -> list[PageRoute]:
    return [
        PageRoute("GET", f"{BASE}/held", show_delayed),
        PageRoute("POST", f"{BASE}/held/cancel", cancel),
        PageRoute("POST", f"{BASE}/held/release", release),
    ]


async def show_delayed(view: View) -> Response:
    frame = await frame_of(view)
    part = chosen_part(view, frame)
    base = frame.weir_api("held", part)
    page = await view.ask("GET", base, {"limit": _HELD_PAGE, "after": view.asked("after") or None})
    return render(
        view,
        frame,
        "held",
        "held.html",
        part=part,
        held=page["held"],
        next=page.get("next"),
        total=await view.ask("GET", f"{base}/count"),
        now_ms=view.context.clock.wall_ms(),
        may=view.context.authoriser.may(view.role, Action.PRODUCE, frame.name),
    )


async def cancel(view: View) -> Response:
    frame = await frame_of(view)
    part = chosen_part(view, frame, view.said("partition"))
    await view.ask("DELETE", f"{frame.weir_api('held', part)}/{quote(view.said('held'), safe='')}")
    return view.back(frame.url(f"held?partition={part.partition or 0}"), "Cancelled: it will never be seen.")


async def release(view: View) -> Response:
    frame = await frame_of(view)
    part = chosen_part(view, frame, view.said("partition"))
    await view.ask("POST", f"{frame.weir_api('held', part)}/{quote(view.said('held'), safe='')}/release")
    return view.back(frame.url(f"held?partition={part.partition or 0}"), "It can be seen now.")


_KINDS = ("key", "id", "offset")


def trace_routes(console: Console) -> list[PageRoute]:
    return [PageRoute("GET", f"{BASE}/trace", show_trace)]


async def show_trace(view: View) -> Response:
    frame = await frame_of(view)
    part = chosen_part(view, frame)
    kind = view.asked("by") if view.asked("by") in _KINDS else "key"
    wanted = view.asked("wanted")
    rate = await view.look(frame.api("/traceRate"), {"applied": "true"})
    found = await view.look(frame.weir_api("trace", part), {kind: wanted, "limit": 20}) if wanted else None
    return render(
        view,
        frame,
        "trace",
        "trace.html",
        part=part,
        kinds=_KINDS,
        kind=kind,
        wanted=wanted,
        rate=100 * (rate or 0),
        messages=None if found is None else found["messages"],
    )
