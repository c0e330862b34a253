"""Who is connected, by every protocol, on every broker; everybody sees their own."""

from weir.admin.http import Response
from weir.console.app import Console, PageRoute
from weir.console.view import View

_API = "/admin/weir/v1/connections"
_MOST = 1_000


def routes(console: Console) -> list[PageRoute]:
    return [PageRoute("GET", "/console/connections", show)]


async def show(view: View) -> Response:
    found = list(await view.ask("GET", _API))
    for other in await view.console.calls.ask_others(view.role, _API):
        found += other
    wanted = view.asked("q").strip().lower()
    fields = ("protocol", "peer", "role", "client", "broker")
    rows = [one for one in found if any(wanted in str(one[field]).lower() for field in fields)]
    return view.render(
        "connections.html",
        title="Connections",
        tab="connections",
        rows=rows[:_MOST],
        total=len(rows),
        q=view.asked("q"),
        all=view.context.authoriser.may_monitor(view.role),
    )
