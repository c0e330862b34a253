"""Nodes: brokers with their load and bundles, bookies with their ledgers; draining and resuming a broker."""

from urllib.parse import quote

from weir.admin.http import Response
from weir.admin.routing import RefusedError
from weir.console.app import Console, PageRoute
from weir.console.view import View

_API = "/admin/weir/v1/cluster"


def routes(console: Console) -> list[PageRoute]:
    return [
        PageRoute("GET", "/console/cluster", show),
        PageRoute("POST", "/console/cluster/{verb}", change),
    ]


async def show(view: View) -> Response:
    found = await view.ask("GET", _API)
    return view.render(
        "cluster.html",
        title="Nodes",
        tab="cluster",
        cluster=found,
        me=view.context.broker_id,
        disk=await view.console.parts.disk(),
        data=view.context.urls.data if view.context.authoriser.may_see_machine(view.role) else "",
    )


async def change(view: View) -> Response:
    broker, verb = view.said("broker"), view.path["verb"]
    if verb not in ("drain", "resume"):
        raise RefusedError(404, f"brokers know no {verb[:40]}")
    await view.ask("PUT", f"{_API}/brokers/{quote(broker, safe='')}/{verb}")
    done = "gives everything to the others" if verb == "drain" else "takes bundles again"
    return view.back("/console/cluster", f"{broker} {done}.")
