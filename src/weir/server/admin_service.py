"""The console in a broker's process: its session key, its sampler, and state that only the process has."""

import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress

from weir.admin.context import AdminContext
from weir.broker.security.tokens import create_token, load_secret, read_key
from weir.console.app import Console, ConsoleParts, DiskSpace
from weir.console.history import History
from weir.console.sampler import Sampler
from weir.meta import keys
from weir.meta.interfaces import ABSENT, MetaStore
from weir.model.check import check
from weir.model.errors import MetaConflictError
from weir.rest.routes import Route
from weir.rest.server import Authenticate
from weir.runtime.adjustable_clock import unmoved
from weir.runtime.interfaces import Runtime
from weir.runtime.tasks import TaskScope
from weir.server.config.part_settings import TokenSettings

_KEY_BYTES = 32


class ConsoleService:
    """Shared by the consoles of all listeners. `start` starts the sampler."""

    def __init__(self, context: AdminContext, parts: ConsoleParts) -> None:
        self._context = context
        self._parts = parts
        self.sampler = Sampler(unmoved(context.clock), context.broker)
        self._tasks = TaskScope("console")

    def start(self, stack: AsyncExitStack) -> None:
        self._tasks.spawn(self.sampler.run(), "sampler")
        stack.push_async_callback(self._tasks.close)

    def api(self) -> list[Route]:
        """Calls for the consoles of other brokers, and for programs."""
        return History(self._context, self.sampler, self._parts.connections).routes()

    def pages(self, routes: Sequence[Route], authenticate: Authenticate, *, tls: bool) -> list[Route]:
        """The routes of one listener."""
        console = Console(self._context, routes, authenticate, self._parts, self.sampler, tls=tls)
        return console.routes()


async def session_key(meta: MetaStore, runtime: Runtime) -> bytes:
    """The key that seals console sessions."""
    return await shared_secret(meta, runtime, keys.CONSOLE_KEY)


async def shared_secret(meta: MetaStore, runtime: Runtime, key: str) -> bytes:
    """A secret shared by all brokers of a cluster, permanently: the first broker creates it."""
    found = await meta.get(key)
    if found is None:
        with suppress(MetaConflictError):
            await meta.put(key, runtime.rng.randbytes(_KEY_BYTES), expect=ABSENT)
        found = await meta.get(key)
    check(found is not None and len(found.value) == _KEY_BYTES, "the secret was just put")
    return b"" if found is None else found.value


def disk_of(folder: str, low_water: int) -> Callable[[], Awaitable[DiskSpace | None]]:
    """The usage of the data folder's disk."""

    async def disk() -> DiskSpace | None:
        try:
            usage = shutil.disk_usage(folder)
        except OSError:
            return None
        return DiskSpace(usage.free, usage.total, low_water)

    return disk


async def token_maker(runtime: Runtime, settings: TokenSettings) -> Callable[[str, int | None], str] | None:
    """Signs tokens with the secret that this broker verifies them with; None if it has only a public key, or
    expects the role in another claim."""
    if not settings.secret or settings.rules.subject_claim != "sub":
        return None
    secret = load_secret(await read_key(settings.secret, runtime.disk)).key
    clock = runtime.clock

    def make(role: str, seconds: int | None) -> str:
        expires = None if seconds is None else clock.wall_ms() + seconds * 1000
        return create_token(secret, role, expires_ms=expires, audience=settings.rules.audience)

    return make
