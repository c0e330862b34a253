"""What became of messages of a topic, by key, id or offset."""

from weir.admin.http import Response
from weir.console.app import Console, PageRoute
from weir.console.pages.messages import chosen_part
from weir.console.pages.topic_frame import BASE, frame_of, render
from weir.console.view import View

_KINDS = ("key", "id", "offset")


def routes(console: Console) -> list[PageRoute]:
    return [PageRoute("GET", f"{BASE}/trace", show)]


async def show(view: View) -> Response:
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
