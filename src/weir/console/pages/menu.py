"""Every page, and the menu."""

from typing import TYPE_CHECKING

from weir.console.pages import access, cluster, dead_letters, groups, messages, topic, topics
from weir.console.pages import access as signing_in
from weir.console.pages import cluster as connections
from weir.console.pages import cluster as overview
from weir.console.pages import groups as queues
from weir.console.pages import groups as streams
from weir.console.pages import messages as held
from weir.console.pages import messages as produce
from weir.console.pages import messages as trace
from weir.console.pages import topic as schema
from weir.console.pages import topic as subscriptions

if TYPE_CHECKING:
    from weir.console.app import Console, PageRoute

_PAGES = (
    signing_in,
    overview,
    topics,
    topic,
    messages,
    produce,
    held,
    trace,
    subscriptions,
    dead_letters,
    schema,
    groups,
    streams,
    queues,
    connections,
    cluster,
    access,
)


def tabs(console: "Console", role: str) -> list[tuple[str, str, str]]:
    """(key, URL, label), in the order of the menu; without what the role has nothing to see on."""
    authoriser = console.context.authoriser
    found = [
        ("overview", "/", "Overview"),
        ("topics", "/console/topics", "Topics"),
        ("groups", "/console/groups", "Groups"),
        ("streams", "/console/streams", "Streams"),
        ("queues", "/console/queues", "Queues"),
        ("connections", "/console/connections", "Connections"),
    ]
    if authoriser.is_superuser(role):
        found.append(("cluster", "/console/cluster", "Nodes"))
    if any(authoriser.may_administer(role, tenant) for tenant in console.context.registry.tenants.names()):
        found.append(("access", "/console/access", "Access"))
    return found


def page_routes(console: "Console") -> "list[PageRoute]":
    return [route for page in _PAGES for route in page.routes(console)]
