"""Lists of topics as answers: read in pages, and cut into pages if the caller says so."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from weir.admin.answers import MAX_ANSWER_BYTES
from weir.admin.http import Response
from weir.admin.routing import Positive, Query, RefusedError
from weir.model.topics import TopicName

#: Weir's own, beside Pulsar's parameters.
PAGE_QUERY = (
    Query("limit", Positive, "at most about so many: the page ends with the topic that makes it as long"),
    Query("after", str, "only topics that come after this one: the last of the page before"),
)


def after_of(query: Mapping[str, Any]) -> TopicName | None:
    """The topic that a page begins after; InvalidNameError."""
    return TopicName.parse(query["after"]).base if query["after"] else None


async def names_answer(
    pages: AsyncIterator[list[TopicName]],
    query: Mapping[str, Any],
    takes: Callable[[TopicName], bool] = lambda name: True,
) -> Response:
    """The names as JSON, written as they are read."""
    limit = query["limit"]
    parts: list[bytes] = []
    size = found = 0
    async for page in pages:
        names = [str(name) for name in page if takes(name)]
        if limit is not None and found + len(names) > limit:
            names = _cut(page, takes, limit - found)
        found += len(names)
        if names:
            parts.append(msgspec.json.encode(names)[1:-1])
            size += len(parts[-1]) + 1
        if size > MAX_ANSWER_BYTES:
            raise RefusedError(
                413,
                f"the answer has more than {MAX_ANSWER_BYTES} bytes",
                hint="ask for pages, with limit and after",
            )
        if limit is not None and found >= limit:
            break
    return Response(200, b"[" + b",".join(parts) + b"]")


def _cut(page: list[TopicName], takes: Callable[[TopicName], bool], limit: int) -> list[str]:
    """The first names, up to the last partition of the topic that makes them as many."""
    names: list[str] = []
    last: TopicName | None = None
    for name in page:
        if len(names) >= limit and name.base != last:
            break
        if takes(name):
            names.append(str(name))
            last = name.base
    return names
