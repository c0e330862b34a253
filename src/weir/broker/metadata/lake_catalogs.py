"""Catalogs of the lake: stored in the metadata, mirrored in the memory of every broker."""

from collections.abc import Mapping

from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.mirror import Mirror
from weir.meta.update import Codec
from weir.model.errors import MetaConflictError, TooManyError
from weir.model.lake import LakeCatalog, check_catalog
from weir.runtime import Runtime
from weir.wire.registry import decode_lake_catalog, encode_lake_catalog

LAKE_CATALOG: Codec[LakeCatalog] = Codec(encode_lake_catalog, decode_lake_catalog)

_ATTEMPTS = 40
#: Limited because every broker has all catalogs in memory.
_MOST = 1_000


class LakeCatalogTable:
    """Fills `api.LakeCatalogs`. `built_in`: the default catalog, which exists without a definition by a
    superuser."""

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
            raise TooManyError(f"the limit of {_MOST} lake catalogs is reached", hint="remove some")
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
        raise MetaConflictError(f"lake catalog {name[:80]!r} was changed concurrently", hint="try again")

    def new_owner(self) -> str:
        return self._runtime.rng.randbytes(16).hex()

    def _changed(self, _key: str, _present: bool) -> None:
        self._known = None
        self._revision += 1
