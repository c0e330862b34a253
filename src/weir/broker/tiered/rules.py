"""What a namespace says of the lake, as far as brokers have to do with it: properties that `weir lake on` writes.

`lake` is for all topics of the namespace, `lake.NAME` for one of them and goes before it.
"""

import hashlib
import json
import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from weir.broker.registry.registry import Registry
from weir.model.policies import Policies, Retention
from weir.model.stream import SegmentStore
from weir.model.tiering import TieringRules
from weir.model.topics import TopicName

log = logging.getLogger(__name__)

_ALL, _ONE, _OWNER = "lake", "lake.", "lake-owner"
#: Beside the tables of all topics; tools that look for tables leave such names out.
_FOLDER = "_segments"
_FOR_EVER = Retention(-1, -1)
#: Longer names are hashed: file systems have a limit.
_MOST_NAME = 200


class LakeRules:
    """Fills `ports.TieringSource`, from the registry's records in memory."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def of(self, topic: TopicName) -> TieringRules | None:
        namespace = self._registry.namespaces.find(topic.namespace)
        if namespace is None:
            return None
        said = namespace.properties.get(f"{_ONE}{topic.local}", namespace.properties.get(_ALL))
        if said is None:
            return None
        record = self._registry.topics.find(topic)
        own = Policies() if record is None else record.policies
        explicit = own.retention or namespace.policies.retention
        return _rules(said, namespace.properties.get(_OWNER, ""), topic, explicit)

    async def look(self, topic: TopicName) -> TieringRules | None:
        """Of a topic whose record may not be in memory."""
        await self._registry.topics.look(topic)
        return self.of(topic)


@lru_cache(maxsize=4096)
def _rules(text: str, owner: str, topic: TopicName, explicit: Retention | None) -> TieringRules | None:
    said = _parsed(text)
    if said is None:
        return None
    where = f"{said.to}/{_FOLDER}/{owner or 'weir'}/{topic.namespace}/{_file_name(topic.local_with_partition)}"
    kept = explicit or _FOR_EVER
    if said.keep_ms is not None:
        time_ms = said.keep_ms if kept.time_ms < 0 else min(said.keep_ms, kept.time_ms)
        kept = Retention.exactly(time_ms, kept.size_bytes)
    return TieringRules(said.after_ms, SegmentStore(where, said.options), kept)


@dataclass(frozen=True, slots=True)
class _Said:
    to: str
    options: dict[str, str]
    after_ms: int
    keep_ms: int | None


@lru_cache(maxsize=256)
def _parsed(text: str) -> _Said | None:
    """None if ledgers stay where they are."""
    try:
        said: dict[str, Any] = json.loads(text)
        after, keep = said.get("tieredAfterMs"), said.get("keepMs")
        if after is None:
            return None
        options = {
            str(name): str(value) for name, value in said.get("options", {}).items() if name.startswith("s3.")
        }
        return _Said(str(said["to"]).rstrip("/"), options, int(after), None if keep is None else int(keep))
    except (ValueError, KeyError, TypeError, AttributeError):
        if text != "off":
            log.warning("a property `lake` is not as weir lake on writes it: %.80s", text)
        return None


def _file_name(name: str) -> str:
    """For whatever characters a topic's name has."""
    quoted = quote(name, safe="")
    if len(quoted) > _MOST_NAME or not quoted.strip("."):
        return "topic-" + hashlib.sha256(name.encode()).hexdigest()
    return quoted
