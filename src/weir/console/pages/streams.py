"""Streams that SQL defines: their SQL, how far they are, and pausing, resuming and dropping them."""

from urllib.parse import quote

from weir.admin.http import Response
from weir.admin.routing import RefusedError
from weir.console.app import Console, PageRoute
from weir.console.view import View
from weir.model.topics import TopicName

_API = "/admin/weir/v1/streams"


def routes(console: Console) -> list[PageRoute]:
    return [
        PageRoute("GET", "/console/streams", show),
        PageRoute("POST", "/console/streams/{verb}", change),
    ]


async def show(view: View) -> Response:
    return view.render(
        "streams.html",
        title="Streams",
        tab="streams",
        streams=await view.look(_API, default=[]),
        runner=await view.look("/admin/weir/v1/stream-runner", default={}),
        now_ms=view.context.clock.wall_ms(),
    )


async def change(view: View) -> Response:
    name = TopicName.parse(view.said("stream"))
    path = f"{_API}/{name.namespace}/{quote(name.local, safe='')}"
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
