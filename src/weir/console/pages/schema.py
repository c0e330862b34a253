"""A topic's schema with its versions, and the policies that hold for it."""

from typing import Any

from weir.admin.http import Response
from weir.console.app import Console, PageRoute
from weir.console.pages.topic_frame import BASE, frame_of, render
from weir.console.pages.topics import topic_segment
from weir.console.view import View


def routes(console: Console) -> list[PageRoute]:
    return [PageRoute("GET", f"{BASE}/schema", show), PageRoute("GET", f"{BASE}/policies", policies)]


async def show(view: View) -> Response:
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
