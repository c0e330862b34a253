"""Users with passwords, in the metadata: the same for all brokers, known from memory."""

from collections.abc import Callable

from weir.broker.access.passwords import check_hash, hash_password
from weir.broker.registry.mirror import Mirror
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec
from weir.model.errors import MetaConflictError
from weir.model.users import PasswordHashing, User, check_user
from weir.runtime import Runtime
from weir.wire.registry import decode_user, encode_user

USER: Codec[User] = Codec(encode_user, decode_user)

_ATTEMPTS = 40


class UserTable:
    """Fills `api.Users`. `on_change(key, present)`: whoever was sure of a user's tags asks again."""

    def __init__(self, meta: MetaStore, runtime: Runtime, on_change: Callable[[str, bool], None]) -> None:
        self._runtime = runtime
        self._mirror = Mirror(meta, runtime, keys.USERS, USER, on_change)

    async def start(self) -> None:
        await self._mirror.start()

    async def close(self) -> None:
        await self._mirror.close()

    def names(self) -> list[str]:
        return sorted(user.name for user in self._mirror.items().values())

    def find(self, name: str) -> User | None:
        return self._mirror.get(keys.user(name))

    async def put(self, user: User) -> bool:
        check_user(user)
        check_hash(user.password_hash, user.hashing)
        before: list[User | None] = []

        def changed(now: User | None) -> User:
            before.append(now)
            return now if now == user else user

        await self._mirror.upsert(keys.user(user.name), changed)
        return before[0] is None

    async def delete(self, name: str) -> bool:
        key = keys.user(name)
        for _ in range(_ATTEMPTS):
            found = await self._mirror.refresh(key)
            if found is None:
                return False
            try:
                await self._mirror.delete(key, expect=found.version)
            except MetaConflictError:
                continue  # changed meanwhile
            return True
        raise MetaConflictError(f"user {name[:80]!r} is changed again and again", hint="try again")

    def hashed(self, password: str) -> str:
        return hash_password(password.encode(), self._runtime.rng.randbytes(4), PasswordHashing.SHA256)
