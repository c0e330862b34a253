"""Sending one message, now or later."""

from base64 import b64encode
from http import HTTPStatus
from typing import Any

from weir.admin.http import Response
from weir.admin.routing import RefusedError
from weir.console.app import Console, PageRoute
from weir.console.pages.messages import SCHEMA_VERSION, moment_ms
from weir.console.pages.topic_frame import BASE, TopicFrame, frame_of, render, schema_of
from weir.console.pages.topics import topic_segment
from weir.console.values import encode
from weir.console.view import View
from weir.model.registry import Action


def routes(console: Console) -> list[PageRoute]:
    return [PageRoute("GET", f"{BASE}/produce", show), PageRoute("POST", f"{BASE}/produce", send)]


async def show(view: View) -> Response:
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
