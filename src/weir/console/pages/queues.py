"""AMQP's queues and exchanges of the vhosts that the role may see."""

from weir.admin.http import Response
from weir.console.app import Console, PageRoute
from weir.console.pages.topics import topic_url
from weir.console.view import View
from weir.model.queues import namespace_of_vhost
from weir.model.topics import TopicName

_MOST = 500


def routes(console: Console) -> list[PageRoute]:
    return [PageRoute("GET", "/console/queues", show)]


async def show(view: View) -> Response:
    wanted = view.asked("q").strip().lower()
    queues = [one for one in await view.ask("GET", "/api/queues") if wanted in one["name"].lower()]
    exchanges = [one for one in await view.ask("GET", "/api/exchanges") if wanted in one["name"].lower()]
    for one in queues[:_MOST]:
        name = TopicName(namespace_of_vhost(one["vhost"]), one["name"])
        one["url"] = topic_url(name) if one.get("durable") and not one.get("exclusive") else ""
    return view.render(
        "queues.html",
        title="Queues",
        tab="queues",
        queues=queues[:_MOST],
        exchanges=[one for one in exchanges[:_MOST] if one["name"]],
        q=view.asked("q"),
    )
