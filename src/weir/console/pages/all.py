"""Every page."""

from typing import TYPE_CHECKING

from weir.console.pages import (
    dead_letters,
    held,
    messages,
    overview,
    produce,
    schema,
    signing_in,
    subscriptions,
    topic,
    topics,
)

if TYPE_CHECKING:
    from weir.console.app import Console, PageRoute

_PAGES = (signing_in, overview, topics, topic, messages, produce, held, subscriptions, dead_letters, schema)


def tabs(console: "Console", role: str) -> list[tuple[str, str, str]]:
    """(key, URL, label), in the order of the menu."""
    return [("overview", "/", "Overview"), ("topics", "/console/topics", "Topics")]


def page_routes(console: "Console") -> "list[PageRoute]":
    return [route for page in _PAGES for route in page.routes(console)]
