"""Tiering rules of topics, from the lake properties of their namespaces, which `weir lake on` writes.

`lake` applies to all topics of the namespace; `lake.NAME` applies to one topic and takes precedence. They name a
catalog, which a superuser defined; brokers write to no other location.
"""

import hashlib
import logging
from functools import lru_cache
from urllib.parse import quote

from weir.broker.metadata.registry import Registry
from weir.model.lake import (
    LAKE_OFF,
    LAKE_PROPERTY,
    LAKE_TOPIC_PREFIX,
    ResolvedLake,
    is_internal,
    owner_of,
    resolve_selection,
)
from weir.model.policies import Policies, Retention, TieringRules
from weir.model.stream import SegmentStore
from weir.model.topics import TopicName

log = logging.getLogger(__name__)

#: Next to the tables of all topics; tools that list tables ignore names of this form.
_FOLDER = "_segments"
_FOR_EVER = Retention(-1, -1)
#: Longer names are hashed: file systems have a limit.
_MOST_NAME = 200
_MOST_RESOLVED = 4096


class LakeRules:
    """Fills `ports.TieringSource`, from the registry's records in memory."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._revision = -1
        self._resolved: dict[tuple[str, str], ResolvedLake] = {}
        #: Definitions without a usable catalog that were logged already.
        self._reported: dict[tuple[str, str], None] = {}

    def of(self, topic: TopicName) -> TieringRules | None:
        namespace = self._registry.namespaces.find(topic.namespace)
        if namespace is None:
            return None
        properties = namespace.properties
        said = properties.get(f"{LAKE_TOPIC_PREFIX}{topic.local}")
        if said is None and not is_internal(topic):
            said = properties.get(LAKE_PROPERTY)
        if said is None or said == LAKE_OFF:
            return None
        resolved = self._resolve(topic, said)
        if resolved.selection.tiered_after_ms is None:
            return None
        record = self._registry.topics.find(topic)
        own = Policies() if record is None else record.policies
        explicit = own.retention or namespace.policies.retention
        after_ms, keep_ms = resolved.selection.tiered_after_ms, resolved.selection.keep_ms
        if resolved.catalog is None:
            return TieringRules(after_ms, None, _retention(explicit, keep_ms))
        options = {name: value for name, value in resolved.catalog.options.items() if name.startswith("s3.")}
        to = resolved.catalog.to.rstrip("/")
        owner = owner_of(properties) or "weir"
        where = f"{to}/{_FOLDER}/{owner}/{topic.namespace}/{_file_name(topic.local_with_partition)}"
        return _rules(where, tuple(sorted(options.items())), after_ms, _retention(explicit, keep_ms))

    async def look(self, topic: TopicName) -> TieringRules | None:
        """Rules of a topic, also if its record is not in memory."""
        await self._registry.topics.look(topic)
        return self.of(topic)

    def _resolve(self, topic: TopicName, text: str) -> ResolvedLake:
        catalogs = self._registry.lake_catalogs
        if catalogs.revision != self._revision or len(self._resolved) >= _MOST_RESOLVED:
            self._revision, self._resolved = catalogs.revision, {}
        tenant = topic.namespace.tenant
        found = self._resolved.get((tenant, text))
        if found is None:
            found = self._resolved[tenant, text] = resolve_selection(text, tenant, catalogs.all())
            if found.catalog is None:
                self._report(topic, text, found.problem)
        return found

    def _report(self, topic: TopicName, text: str, problem: str) -> None:
        key = (topic.namespace.tenant, text)
        if key not in self._reported and len(self._reported) < _MOST_RESOLVED:
            self._reported[key] = None
            log.warning(
                "lake definition of %s ignored: %s "
                "(a superuser defines the catalog: weir lake catalogs set, then: weir lake on %s --catalog NAME)",
                topic.namespace,
                problem,
                topic.namespace,
            )


@lru_cache(maxsize=4096)
def _rules(where: str, options: tuple[tuple[str, str], ...], after_ms: int, retention: Retention) -> TieringRules:
    return TieringRules(after_ms, SegmentStore(where, dict(options)), retention)


def _retention(explicit: Retention | None, keep_ms: int | None) -> Retention:
    kept = explicit or _FOR_EVER
    if keep_ms is None:
        return kept
    return Retention.exactly(keep_ms if kept.time_ms < 0 else min(keep_ms, kept.time_ms), kept.size_bytes)


def _file_name(name: str) -> str:
    """A safe file name for any topic name."""
    quoted = quote(name, safe="")
    if len(quoted) > _MOST_NAME or not quoted.strip("."):
        return "topic-" + hashlib.sha256(name.encode()).hexdigest()
    return quoted
