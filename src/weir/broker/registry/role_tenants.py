"""Whose tenant's names a role uses: noted when it first uses one, so no later grant changes what they mean."""

from collections.abc import Callable
from urllib.parse import quote

from weir.broker.registry.mirror import Mirror
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec
from weir.runtime import Runtime

TENANT_NAME: Codec[str] = Codec(str.encode, lambda data: bytes(data).decode(errors="replace"))


class RoleTenants:
    """The tenant of every role that has used a name of a consumer group, a transactional id or a sink."""

    def __init__(self, meta: MetaStore, runtime: Runtime) -> None:
        self._mirror = Mirror(meta, runtime, keys.ROLE_TENANTS, TENANT_NAME)

    async def start(self) -> None:
        await self._mirror.start()

    async def close(self) -> None:
        await self._mirror.close()

    def find(self, role: str) -> str | None:
        return self._mirror.get(_key(role))

    async def note(self, role: str, tenant: str, *, still: Callable[[str], bool]) -> str:
        """The role's tenant: what was noted before, by whichever broker, if that is `still` so; else this one."""

        def noted(before: str | None) -> str:
            return tenant if before is None or not still(before) else before

        return (await self._mirror.upsert(_key(role), noted)).value


def _key(role: str) -> str:
    return keys.ROLE_TENANTS + quote(role, safe="")
