"""What all pages about one topic share: its name, its paths in the API, and which tabs it has."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from weir.admin.http import Response
from weir.admin.routing import RefusedError
from weir.console.pages.topics import topic_segment, topic_url
from weir.console.values import ValueSchema
from weir.console.view import View
from weir.model.errors import InvalidNameError
from weir.model.topics import Domain, TopicName

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
