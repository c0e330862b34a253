"""Topics of a namespace: found by a part of their names, page by page, a million of them too.

What all pages about one topic share: its name, its paths in the API, and which tabs it has.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from weir.console.app import Console, PageRoute
from weir.console.message_values import ValueSchema
from weir.console.sampler import ORDERS, Ranking, rank
from weir.console.view import View
from weir.model.errors import InvalidNameError, WeirError
from weir.model.registry import TopicRecord
from weir.model.topics import Domain, NamespaceName, TopicName
from weir.rest.http import Response
from weir.rest.routes import RefusedError

_PAGE = 50
#: Names that one request looks through; the next one goes on from there.
_LOOKED_THROUGH = 50_000
_BY_NAME = "name"


def routes(console: Console) -> list[PageRoute]:
    return [
        PageRoute("GET", "/console/topics", show),
        PageRoute("POST", "/console/topics", create),
    ]


def namespaces_of(view: View) -> list[NamespaceName]:
    """Those that the role may know of."""
    registry, may = view.context.registry, view.context.authoriser.may_look
    return [
        name
        for tenant in registry.tenants.names()
        for name in registry.namespaces.names(tenant)
        if may(view.role, name)
        or any(view.role in one.roles for one in registry.grants.on_topics_of(name).values())
    ]


async def show(view: View) -> Response:
    known = namespaces_of(view)
    asked = view.asked("namespace")
    chosen = next((name for name in known if str(name) == asked), None)
    if asked and chosen is None:
        raise RefusedError(404, f"there is no namespace {asked}, or it is not yours to see")
    if chosen is None and known:
        chosen = next((name for name in known if str(name) == "public/default"), known[0])
    wanted, order = view.asked("q").strip(), view.asked("sort", "name")
    rows: list[dict[str, Any]] = []
    after = more = ""
    ranking: Ranking | None = None
    order = order if order in ORDERS else _BY_NAME
    if chosen is not None:
        after = view.asked("after")
        if order == _BY_NAME:
            rows, more = await _rows(view, chosen, wanted, after)
        else:
            rows, ranking = await _ranked(view, chosen, wanted, order, view.number("after", 0))
            more = str(view.number("after", 0) + _PAGE) if ranking.more else ""
    values = {
        "namespaces": known,
        "namespace": chosen,
        "q": wanted,
        "sort": order,
        "rows": rows,
        "ranking": ranking,
        "more": more,
        "after": after,
        "may_create": chosen is not None and view.context.authoriser.may_administer(view.role, chosen),
    }
    if "hx-request" in view.call.request.headers:
        return view.fragment("_topics.html", **values)
    return view.render("topics.html", title="Topics", tab="topics", **values)


async def create(view: View) -> Response:
    namespace, name = view.said("namespace"), view.said("name").strip()
    text = view.form.get("partitions", "").strip() or "0"
    if not (text.isascii() and text.isdigit()):
        raise RefusedError(400, f"{text} is not a number of partitions")
    topic = TopicName.parse(f"persistent://{namespace}/{name}")
    base = f"/admin/v2/persistent/{topic.namespace}/{topic_segment(topic)}"
    if int(text):
        await view.ask("PUT", f"{base}/partitions", body=int(text))
    else:
        await view.ask("PUT", base)
    return view.back(topic_url(topic), f"{topic.local} is there.")


def topic_segment(topic: TopicName) -> str:
    from urllib.parse import quote

    return quote(topic.local_with_partition, safe="")


def topic_url(topic: TopicName, page: str = "") -> str:
    found = f"/console/topic/{topic.domain.value}/{topic.namespace}/{topic_segment(topic)}"
    return f"{found}/{page}" if page else found


# --- finding ----------------------------------------------------------------------------------------------------


async def _ranked(
    view: View, namespace: NamespaceName, wanted: str, order: str, first: int
) -> tuple[list[dict[str, Any]], Ranking]:
    """A page of topics by what they do, of those that this broker has loaded."""
    may, low = view.context.authoriser.may_look, wanted.lower()
    whole = may(view.role, namespace)

    def sees(name: TopicName) -> bool:
        return low in name.local.lower() and (whole or may(view.role, name))

    context = view.context
    ranking = await rank(
        context.broker, context.clock, namespace, order=order, wanted=sees, page=(first, first + _PAGE)
    )
    records = [await context.registry.topics.look(name) for name in ranking.names]
    return [_row(view, record, sample=True) for record in records if record is not None], ranking


async def _rows(view: View, namespace: NamespaceName, wanted: str, after: str) -> tuple[list[dict[str, Any]], str]:
    """A page of topics, and what the next one comes after; "" if there is none."""
    start = TopicName.parse(after).base if after else None
    may = view.context.authoriser.may_look
    whole = may(view.role, namespace)
    records = view.context.registry.topics.of(namespace, after=start)

    def sees(record: TopicRecord) -> bool:
        return whole or may(view.role, record.name)

    found, more = await _matching(records, wanted, _PAGE, sees)
    return [_row(view, record) for record in found], more


async def _matching(
    records: AsyncIterator[TopicRecord], wanted: str, most: int, sees: Callable[[TopicRecord], bool]
) -> tuple[list[TopicRecord], str]:
    found: list[TopicRecord] = []
    looked, last = 0, ""
    low = wanted.lower()
    async for record in records:
        if len(found) == most or looked == _LOOKED_THROUGH:
            return found, last
        looked += 1
        last = str(record.name)
        if low in record.name.local.lower() and sees(record):
            found.append(record)
    return found, ""


def _row(view: View, record: TopicRecord, *, sample: bool = False) -> dict[str, Any]:
    """What memory knows of a topic; nothing is loaded to show a list. `sample`: look at those that are loaded and
    had not their turn yet."""
    sampler, broker = view.console.sampler, view.context.broker
    parts = record.parts()
    row: dict[str, Any] = {
        "name": record.name,
        "url": topic_url(record.name),
        "partitions": record.partitions,
        "in": 0.0,
        "out": 0.0,
        "backlog": 0,
        "size": 0,
        "rates": [],
        "loaded": False,
    }
    for part in parts[:100]:
        history = sampler.topics.get(part)
        if history is None or not history.points:
            topic = broker.served_now(part) if sample else None
            if topic is None:
                continue
            history = sampler.kept(topic)
        row["loaded"] = True
        last = history.points[-1]
        row["in"] += last.messages_in
        row["out"] += last.messages_out
        row["backlog"] += last.backlog
        row["size"] += history.storage_bytes
        row["rates"] = _added(row["rates"], [point.messages_in + point.messages_out for point in history.points])
    row["here"] = broker.owner_now(parts[0]).here if parts else True
    return row


def _added(one: list[float], other: list[float]) -> list[float]:
    """Sums from the newest on."""
    length = min(60, max(len(one), len(other)))
    one, other = [0.0] * (length - len(one)) + one[-length:], [0.0] * (length - len(other)) + other[-length:]
    return [a + b for a, b in zip(one, other, strict=True)]


__all__ = ["WeirError", "namespaces_of", "topic_segment", "topic_url"]

BASE = "/console/topic/{domain}/{tenant}/{namespace}/{topic}"
_TABS = (
    ("", "Summary"),
    ("messages", "Messages"),
    ("produce", "Produce"),
    ("subscriptions", "Subscriptions"),
    ("held", "Held"),
    ("trace", "Trace"),
    ("deadletters", "Dead letters"),
    ("schema", "Schema"),
    ("policies", "Policies"),
)
#: Nothing of a topic that stores nothing can be browsed.
_PASSING = ("", "subscriptions", "schema", "policies")


@dataclass(frozen=True, slots=True)
class TopicFrame:
    name: TopicName
    #: Of the topic as a whole; 0 if it is not partitioned.
    partitions: int

    @property
    def stored(self) -> bool:
        return self.name.domain is Domain.PERSISTENT

    @property
    def whole(self) -> bool:
        """Whether this is a partitioned topic as a whole."""
        return bool(self.partitions) and self.name.partition is None

    def url(self, page: str = "") -> str:
        return topic_url(self.name, page)

    def api(self, rest: str = "") -> str:
        return f"/admin/v2/{self.name.domain.value}/{self.name.namespace}/{topic_segment(self.name)}{rest}"

    def weir_api(self, kind: str, name: TopicName | None = None) -> str:
        name = name or self.name
        return f"/admin/weir/v1/{kind}/{name.domain.value}/{name.namespace}/{topic_segment(name)}"

    def subscription(self, name: str, rest: str = "") -> str:
        return self.api(f"/subscription/{quote(name, safe='')}{rest}")

    def parts(self) -> list[TopicName]:
        """Each partition; the topic itself if it has none."""
        if not self.whole:
            return [self.name]
        return [self.name.at(number) for number in range(self.partitions)]


async def frame_of(view: View) -> TopicFrame:
    """The topic of the path; RefusedError if it is not there, or not for this role to know of."""
    path = view.path
    try:
        domain = Domain(path["domain"])
        name = TopicName.parse(f"{domain.value}://{path['tenant']}/{path['namespace']}/{path['topic']}")
    except (ValueError, InvalidNameError) as bad:
        raise RefusedError(404, "there is no such topic") from bad
    frame = TopicFrame(name, 0)
    found = await view.ask("GET", frame.api("/partitions"))
    if found["partitions"] or name.partition is not None:
        return TopicFrame(name, found["partitions"])
    await view.context.registry.ensure_topic(name, create=False)
    return frame


def render(
    view: View, frame: TopicFrame, page: str, template: str, status: int = 200, /, **values: Any
) -> Response:
    tabs = [(key, frame.url(key), label) for key, label in _TABS if frame.stored or key in _PASSING]
    return view.render(
        template,
        status,
        title=frame.name.local_with_partition,
        tab="topics",
        frame=frame,
        tabs=tabs,
        page=page,
        **values,
    )


async def schema_of(view: View, frame: TopicFrame, version: str | None = None) -> ValueSchema | None:
    base = f"/admin/v2/schemas/{frame.name.namespace}/{topic_segment(frame.name.base)}/schema"
    found = await view.look(base if version is None else f"{base}/{version}")
    return None if found is None else ValueSchema.of_answer(found)
