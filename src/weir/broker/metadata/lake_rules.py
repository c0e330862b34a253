"""What a namespace says of the lake, as far as brokers have to do with it: properties that `weir lake on` writes.

`lake` is for all topics of the namespace, `lake.NAME` for one of them and goes before it. They name a catalog,
which a superuser defined; a broker writes nowhere else.

Catalogs of the lake, in the metadata: the same for all brokers, known from memory.
"""

import hashlib
import logging
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import quote

from weir.broker.metadata.registry import Registry
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.mirror import Mirror
from weir.meta.update import Codec
from weir.model.errors import MetaConflictError, TooManyError
from weir.model.lake import (
    LAKE_OFF,
    LAKE_PROPERTY,
    LAKE_TOPIC_PREFIX,
    LakeCatalog,
    ResolvedLake,
    check_catalog,
    owner_of,
    resolve_selection,
)
from weir.model.policies import Policies, Retention, TieringRules
from weir.model.stream import SegmentStore
from weir.model.topics import TopicName, is_internal
from weir.runtime.interfaces import Runtime
from weir.wire.registry import decode_lake_catalog, encode_lake_catalog

log = logging.getLogger(__name__)

#: Beside the tables of all topics; tools that look for tables leave such names out.
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
        #: What is in no lake although it says so, and is in the log.
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
        """Of a topic whose record may not be in memory."""
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
                "the lake definition of %s is ignored: %s "
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
    """For whatever characters a topic's name has."""
    quoted = quote(name, safe="")
    if len(quoted) > _MOST_NAME or not quoted.strip("."):
        return "topic-" + hashlib.sha256(name.encode()).hexdigest()
    return quoted


LAKE_CATALOG: Codec[LakeCatalog] = Codec(encode_lake_catalog, decode_lake_catalog)

_ATTEMPTS = 40
#: Every broker has all of them in memory.
_MOST = 1_000


class LakeCatalogTable:
    """Fills `api.LakeCatalogs`. `built_in`: the catalog that there is although no superuser has defined it."""

    def __init__(self, meta: MetaStore, runtime: Runtime, built_in: LakeCatalog | None = None) -> None:
        self._runtime = runtime
        self._built_in = {} if built_in is None else {built_in.name: built_in}
        self._known: dict[str, LakeCatalog] | None = None
        self._revision = 0
        self._mirror = Mirror(meta, runtime, keys.LAKE_CATALOGS, LAKE_CATALOG, self._changed)

    async def start(self) -> None:
        await self._mirror.start()

    async def close(self) -> None:
        await self._mirror.close()

    @property
    def revision(self) -> int:
        return self._revision

    def all(self) -> Mapping[str, LakeCatalog]:
        if self._known is None:
            stored = {one.name: one for one in self._mirror.items().values()}
            self._known = {**self._built_in, **stored}
        return self._known

    async def put(self, catalog: LakeCatalog) -> None:
        check_catalog(catalog)
        if catalog.name not in self.all() and len(self.all()) >= _MOST:
            raise TooManyError(f"there are {_MOST} lake catalogs, and there can be no more", hint="remove some")
        await self._mirror.upsert(
            keys.lake_catalog(catalog.name), lambda now: now if now == catalog and now is not None else catalog
        )

    async def delete(self, name: str) -> bool:
        key = keys.lake_catalog(name)
        for _ in range(_ATTEMPTS):
            found = await self._mirror.refresh(key)
            if found is None:
                return False
            try:
                await self._mirror.delete(key, expect=found.version)
            except MetaConflictError:
                continue  # changed meanwhile
            return True
        raise MetaConflictError(f"lake catalog {name[:80]!r} is changed again and again", hint="try again")

    def new_owner(self) -> str:
        return self._runtime.rng.randbytes(16).hex()

    def _changed(self, _key: str, _present: bool) -> None:
        self._known = None
        self._revision += 1
