"""Every page, and the menu."""

from typing import TYPE_CHECKING

from weir.console.pages import access, cluster, dead_letters, groups, messages, topic, topics

if TYPE_CHECKING:
    from weir.console.app import Console, PageRoute

_ROUTES = (
    access.signing_in_routes,
    cluster.overview_routes,
    topics.routes,
    topic.topic_routes,
    messages.browse_routes,
    messages.produce_routes,
    messages.delayed_routes,
    messages.trace_routes,
    topic.subscription_routes,
    dead_letters.routes,
    topic.schema_routes,
    groups.group_routes,
    groups.stream_routes,
    groups.queue_routes,
    cluster.connection_routes,
    cluster.node_routes,
    access.access_routes,
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
    return [route for routes in _ROUTES for route in routes(console)]
