"""Catalogs of the lake, in the metadata: the same for all brokers, known from memory."""

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
