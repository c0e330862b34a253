"""What waits for its moment: listed, cancelled, let go now."""

from urllib.parse import quote

from weir.admin.http import Response
from weir.console.app import Console, PageRoute
from weir.console.pages.messages import chosen_part
from weir.console.pages.topic_frame import BASE, frame_of, render
from weir.console.view import View
from weir.model.registry import Action

_PAGE = 100


def routes(console: Console) -> list[PageRoute]:
    return [
        PageRoute("GET", f"{BASE}/held", show),
        PageRoute("POST", f"{BASE}/held/cancel", cancel),
        PageRoute("POST", f"{BASE}/held/release", release),
    ]


async def show(view: View) -> Response:
    frame = await frame_of(view)
    part = chosen_part(view, frame)
    base = frame.weir_api("held", part)
    page = await view.ask("GET", base, {"limit": _PAGE, "after": view.asked("after") or None})
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
